// The commands of this page name the address that it came from.

for (const place of document.querySelectorAll(".here")) place.textContent = location.origin;

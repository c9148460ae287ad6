// Pictures from the camera, which is asked for when somebody presses its button, and let go when its dialog closes.

import { byId } from "./element.js";

export function listen(take) {
  if (!navigator.mediaDevices?.getUserMedia) return; // the browser gives it only to https and to this machine itself
  const dialog = byId("camera");
  const film = byId("film");
  let stream = null;
  let side = "environment";
  let taken = 0;
  const promise = byId("camera-says").textContent;

  const letGo = () => {
    stream?.getTracks().forEach((track) => track.stop());
    stream = null;
    film.srcObject = null;
    byId("take").disabled = true;
  };

  const begin = async () => {
    letGo();
    try {
      const wish = { facingMode: { ideal: side }, width: { ideal: 1280 }, height: { ideal: 960 } };
      const given = await navigator.mediaDevices.getUserMedia({ video: wish });
      stream = given;
      if (!dialog.open) return letGo(); // closed while the browser was asking
      film.srcObject = stream;
      await film.play();
      byId("take").disabled = false;
      byId("camera-says").textContent = promise;
    } catch (problem) {
      letGo();
      byId("camera-says").textContent = `The browser does not give the camera: ${problem.message || problem.name}.`;
    }
    return undefined;
  };

  const shoot = () => {
    const sheet = document.createElement("canvas");
    sheet.width = film.videoWidth;
    sheet.height = film.videoHeight;
    sheet.getContext("2d").drawImage(film, 0, 0);
    sheet.toBlob((file) => {
      taken += 1;
      take([{ file, name: `camera-${taken}.png` }]);
    }, "image/png"); // PNG, because a lossy picture is another picture
    dialog.close();
  };

  byId("open-camera").hidden = false;
  byId("open-camera").addEventListener("click", () => {
    dialog.showModal();
    begin();
  });
  byId("turn").addEventListener("click", () => {
    side = side === "environment" ? "user" : "environment";
    begin();
  });
  byId("take").addEventListener("click", shoot);
  byId("close-camera").addEventListener("click", () => dialog.close());
  dialog.addEventListener("close", letGo); // Escape closes it as well
}

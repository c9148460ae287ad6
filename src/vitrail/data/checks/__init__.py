"""The dataset check (`vitrail check`): unreadable images, duplicates, leakage, class balance, quality, shortcuts."""

"""Draw the pictures that the documentation shows, from the package's own figures. `make figures` runs this."""

from __future__ import annotations

from pathlib import Path

from vitrail.explain.figures import (
    SAMPLE_IMAGE,
    plot_patch_grid,
    plot_positions,
    plot_token_strip,
    read_image,
    save_png,
)
from vitrail.model.registry import config_from_name
from vitrail.model.vit import create_model

IMAGES = Path(__file__).parent / "images"


def main() -> None:
    """The drawn window with its patches, one patch as a strip, and the explained design's position table."""
    config = config_from_name("explained_vit_patch20_60x100")
    image = read_image(SAMPLE_IMAGE, channels=1)
    figures = {
        "panes.png": plot_patch_grid(image, config.patch),
        "token.png": plot_token_strip(image, config.patch, token=8),
        "positions.png": plot_positions(create_model(config)),
    }
    for name, figure in figures.items():
        if (IMAGES / name).exists():
            continue
        save_png(figure, IMAGES / name)
        print(f"drew {name}")


if __name__ == "__main__":
    main()

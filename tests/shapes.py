"""How signatures are checked while tests run: jaxtyping reads the shapes, beartype the types; an int may be a float."""

from __future__ import annotations

from beartype import BeartypeConf, beartype

checked = beartype(conf=BeartypeConf(is_pep484_tower=True))

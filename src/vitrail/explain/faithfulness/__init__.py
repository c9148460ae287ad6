"""Faithfulness of attribution maps: deletion and insertion, localization of known evidence, weight randomization."""

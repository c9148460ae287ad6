"""Finetune."""

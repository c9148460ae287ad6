"""The 64 kinds of picture file that people really have, each made by code: what RELIABILITY calls part C."""

"""Counts in words."""

from vitrail.formatting import format_count


def test_one_thing_is_no_several_things():
    assert [format_count(count, "picture") for count in (0, 1, 1200)] == ["0 pictures", "1 picture", "1,200 pictures"]

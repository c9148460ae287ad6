"""webdataset reads shards as a stream, Vitrail as an index: both must find the same samples with the same bytes."""

from __future__ import annotations

import json
import random
import tarfile

import pytest
import webdataset

from tar_files import picture, write_tar
from vitrail.data.open import open_source

pytestmark = pytest.mark.filterwarnings(  # webdataset leaves closing its files to the garbage collector
    "ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"
)


def as_a_stream(paths):
    """(key, picture, class) of every sample, as webdataset hands them out."""
    shards = [str(path) for path in paths]
    stream = webdataset.WebDataset(shards, shardshuffle=False, empty_check=False)
    return [(sample["__key__"], sample.get("jpg") or sample["png"], sample["cls"].decode()) for sample in stream]


def as_an_index(source):
    names = [id.split(".tar/", 1)[1] for id in source.ids]
    classes = [source.classes[number] for number in source.targets]
    return list(zip(names, [each.fetch() for each in source.images], classes, strict=True))


@pytest.mark.parametrize("layout", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_the_same_samples_in_the_same_order_with_the_same_bytes(layout, tmp_path):
    generator = random.Random(0)
    paths = []
    for shard in range(3):
        files = {}
        for number in range(20):
            key = f"{generator.choice(['', 'a/', 'b.c/'])}{'x' * generator.choice([1, 60])}{shard}-{number:03d}"
            parts = [
                (f"{key}.{generator.choice(['jpg', 'png', 'PNG'])}", picture(generator.randrange(256))),
                (f"{key}.cls", str(generator.randrange(3)).encode()),
                (f"{key}.json", json.dumps({"number": number}).encode()),
                (f"{key}.depth.npy", b"not looked at"),
            ]
            generator.shuffle(parts)
            files |= dict(parts)
        paths.append(write_tar(tmp_path / f"set-{shard}.tar", files, layout))
    stream = as_a_stream(paths)
    assert len(stream) == 60
    assert as_an_index(open_source(tmp_path)) == stream


def test_what_webdataset_writes_is_read(tmp_path):
    with webdataset.TarWriter(str(tmp_path / "a.tar")) as writer:
        for number in range(6):
            writer.write({"__key__": f"{number:06d}", "png": picture(number), "cls": number % 2, "json": {"n": number}})
    source = open_source(tmp_path / "a.tar")
    assert as_an_index(source) == as_a_stream([tmp_path / "a.tar"])
    assert list(source.metadata["n"]) == ["0", "1", "2", "3", "4", "5"]

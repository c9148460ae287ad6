"""What a prediction in parts needs before it begins, and how it says where it stands."""

from __future__ import annotations

from pathlib import Path

import pytest

from vitrail.errors import UsageError
from vitrail.predict.chunks import ChunkFolder, ChunkJob
from vitrail.services import predict_chunks


@pytest.mark.parametrize(
    ("to", "words"), [(None, r"--to FILE\.csv"), (Path("a.txt"), r"ends in \.csv, \.jsonl or \.parquet\. Got a\.txt")]
)
def test_parts_become_a_file_of_answers(to, words):
    with pytest.raises(UsageError, match=words):
        predict_chunks.check_output_path(to)


def test_every_part_has_one_rank_whatever_the_number_of_ranks(tmp_path):
    pictures = [Path(f"{k}.png") for k in range(1000)]
    parts = ChunkFolder(tmp_path / "num_chunks", ChunkJob(model="m", pictures="p", count=1000, size=64), pictures)
    assert parts.job.num_chunks == 16 and parts.chunk_images(15) == pictures[960:]
    for world in (1, 3, 16, 40):
        shared = [number for rank in range(world) for number in parts.chunks_for_rank(rank, world)]
        assert sorted(shared) == list(range(16))


def test_the_last_process_says_the_file_is_there_and_the_others_what_is_missing():
    facts = {
        "folder": Path("a.csv.parts"),
        "to": Path("a.csv"),
        "num_chunks": 9,
        "num_written": 4,
        "num_reused": 0,
        "skipped": (),
    }
    done = predict_chunks.ChunkedPredictResult(num_missing=0, num_rows=1234, **facts)
    assert done.summarize() == "1,234 rows written to a.csv, from 9 parts; a.csv.parts may be deleted now"
    waits = predict_chunks.ChunkedPredictResult(num_missing=5, num_rows=None, rank=2, world_size=4, **facts)
    assert waits.summarize().startswith(
        "Rank 2 of 4 has written its share; still to come are 5 of 9 parts in a.csv.parts."
    )
    assert waits.to_json()["missing"] == 5

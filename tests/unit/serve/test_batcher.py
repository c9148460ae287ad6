"""Who goes together, who goes alone, and who is never computed."""

from __future__ import annotations

import asyncio
import threading

import numpy as np
import pytest
import torch

from vitrail.data.parallel import ImageName
from vitrail.serve.batcher import Batcher, PredictionBatch
from vitrail.serve.http_errors import HttpError

pytestmark = pytest.mark.serial


class Gated:
    """A model that waits at a gate and notes the size of each batch; a row holds the first pixel of its picture."""

    def __init__(self, threads: int = 1) -> None:
        self.threads = threads
        self.sizes: list[int] = []
        self.used: list[int] = []
        self.gate = threading.Event()
        self.entered = threading.Event()

    def predict_batch(self, names, images, decisions=()):
        self.entered.set()
        self.used.append(torch.get_num_threads())
        assert self.gate.wait(10)
        self.sizes.append(len(images))
        first = images[:, 0, 0, 0].tolist()
        if 255 in first:
            raise HttpError(503, "broken")
        return PredictionBatch([{"first": value} for value in first], {"first": np.array(first)})


def picture(value: int, count: int = 1) -> torch.Tensor:
    return torch.full((count, 1, 2, 2), value, dtype=torch.uint8)


def run(play, most: int = 8, threads: int = 1) -> Gated:
    """Let a coroutine play with a batcher whose model is gated."""
    model = Gated(threads)

    async def whole() -> None:
        batches: list[tuple[int, float]] = []
        batcher = Batcher(lambda: model, lambda *_: None, lambda *batch: batches.append(batch), most)
        batcher.start()
        await play(batcher, model, batches)
        model.gate.set()
        assert await batcher.close()

    asyncio.run(whole())
    return model


async def begin(batcher: Batcher, model: Gated, *values: int) -> list[asyncio.Task[PredictionBatch]]:
    """One request alone in the model, then the others, all of them waiting."""
    tasks = []
    for value in values:
        tasks.append(asyncio.create_task(batcher.submit([ImageName("", "")], picture(value))))
        await asyncio.to_thread(model.entered.wait, 10)
    await asyncio.sleep(0.02)
    return tasks


def test_a_lone_request_goes_at_once_and_whoever_waits_goes_together():
    async def play(batcher, model, batches):
        tasks = await begin(batcher, model, *range(6))
        model.gate.set()
        found = await asyncio.gather(*tasks)
        assert [one.rows[0]["first"] for one in found] == list(range(6))  # each its own
        assert [one.outputs["first"].tolist() for one in found] == [[value] for value in range(6)]
        assert [pictures for pictures, _ in batches] == [1, 5] and batcher.seconds_per_image > 0

    assert run(play).sizes == [1, 5]


def test_no_batch_is_larger_than_the_limit_unless_one_request_is():
    async def play(batcher, model, batches):
        tasks = await begin(batcher, model, *range(7))
        many = asyncio.create_task(batcher.submit([ImageName("", "")] * 5, picture(9, 5)))
        await asyncio.sleep(0.02)
        model.gate.set()
        await asyncio.gather(*tasks)
        assert len((await many).rows) == 5

    assert run(play, most=4).sizes == [1, 4, 2, 5]


def test_who_has_left_while_waiting_is_never_computed():  # E9
    async def play(batcher, model, batches):
        first, second, third = await begin(batcher, model, 1, 2, 3)
        second.cancel()
        await asyncio.sleep(0.02)
        model.gate.set()
        assert (await first).rows == [{"first": 1}] and (await third).rows == [{"first": 3}]

    assert run(play).sizes == [1, 1]


def test_an_error_reaches_everybody_of_its_batch_and_nobody_else():
    async def play(batcher, model, batches):
        tasks = await begin(batcher, model, 1, 255, 2)
        model.gate.set()
        found = await asyncio.gather(*tasks, return_exceptions=True)
        assert found[0].rows == [{"first": 1}]
        assert [str(one) for one in found[1:]] == ["broken", "broken"] and found[1] is not found[2]
        assert (await batcher.submit([ImageName("", "")], picture(3))).rows == [{"first": 3}]

    run(play)


def test_errands_take_the_model_for_themselves_between_batches():
    order = []

    async def play(batcher, model, batches):
        (first,) = await begin(batcher, model, 1)
        errands = [asyncio.create_task(batcher.run_exclusive(lambda n=n: order.append(n) or n)) for n in range(3)]
        errands[1].cancel()
        second = asyncio.create_task(batcher.submit([ImageName("", "")], picture(2)))
        second.add_done_callback(lambda _: order.append("batch"))
        await asyncio.sleep(0.02)
        model.gate.set()
        await asyncio.gather(first, second, errands[0], errands[2])
        with pytest.raises(ZeroDivisionError):
            await batcher.run_exclusive(lambda: 1 // 0)

    run(play)
    assert sorted(order, key=str) == [0, 2, "batch"] and order.index(0) < order.index(2)


async def until(true) -> None:
    async with asyncio.timeout(10):
        while not true():
            await asyncio.sleep(0.005)


def test_with_several_cores_two_batches_are_computed_at_once_by_half_of_them_each():
    async def play(batcher, model, batches):
        first = await begin(batcher, model, 0)
        assert model.used == [4]  # a lone request has all
        first += await begin(batcher, model, 1)
        await until(lambda: len(model.used) == 2)
        rest = await begin(batcher, model, 2, 3, 4, 5, 6)  # both are busy now
        model.gate.set()
        found = await asyncio.gather(*first, *rest)
        assert [one.rows[0]["first"] for one in found] == list(range(7))

    model = run(play, threads=4)
    assert model.used[1:3] == [2, 2]
    assert max(model.sizes) == 3 and sum(model.sizes) == 7  # half of the five, and the rest for the other thread


def test_a_lone_request_always_has_the_first_thread():
    """So that only that thread ever needs helpers of its own."""
    names = set()

    async def play(batcher, model, batches):
        model.gate.set()
        answer, model.predict_batch = (
            model.predict_batch,
            lambda *asked: names.add(threading.current_thread().name) or answer(*asked),
        )
        for value in range(20):
            await batcher.submit([ImageName("", "")], picture(value))

    assert run(play, threads=2).used == [2] * 20
    assert names == {"vitrail-model"}


def test_an_errand_waits_for_both_threads_and_neither_begins_beside_it():
    order = []

    async def play(batcher, model, batches):
        tasks = await begin(batcher, model, 1, 2)
        await until(lambda: len(model.used) == 2)
        within = threading.Event()

        def errand() -> int:
            order.append(("errand", len(model.sizes), torch.get_num_threads()))
            assert within.wait(10)
            order.append(("end", len(model.sizes), torch.get_num_threads()))
            return 1

        wanted = asyncio.create_task(batcher.run_exclusive(errand))
        later = [asyncio.create_task(batcher.submit([ImageName("", "")], picture(value))) for value in (3, 4, 5)]
        await asyncio.sleep(0.02)
        model.gate.set()
        await until(lambda: order)
        await asyncio.sleep(0.05)
        within.set()
        assert await wanted == 1
        await asyncio.gather(*tasks, *later)

    run(play, threads=2)
    assert [word for word, *_ in order] == ["errand", "end"]
    assert order[0][1:] == order[1][1:] and order[0][2] == 2


def test_with_two_threads_an_error_stays_in_its_batch_and_both_go_on():
    async def play(batcher, model, batches):
        tasks = await begin(batcher, model, 255, 1)
        await until(lambda: len(model.used) == 2)
        model.gate.set()
        found = await asyncio.gather(*tasks, return_exceptions=True)
        assert str(found[0]) == "broken" and found[1].rows == [{"first": 1}]
        more = [batcher.submit([ImageName("", "")], picture(value)) for value in range(9)]
        assert [one.rows[0]["first"] for one in await asyncio.gather(*more)] == list(range(9))

    run(play, threads=2)


def test_why_there_is_no_model_is_told():
    told = []

    def broken():
        raise OSError("no such file")

    async def whole() -> None:
        batcher = Batcher(broken, lambda model, problem: told.append((model, str(problem))), lambda *_: None, 8)
        batcher.start()
        while not told:
            await asyncio.sleep(0.01)
        assert await batcher.close()

    asyncio.run(whole())
    assert told == [(None, "no such file")]

"""Where wrong elements lie: every kind of region, and its owner."""

import pytest
import torch
from torch import Tensor

from problems.answers.locate import locate


def mask(*shape: int) -> Tensor:
    return torch.zeros(shape, dtype=torch.bool)


def test_everything() -> None:
    bad = ~mask(64, 64)
    bad[3, 5] = False
    assert locate(bad, 4, 0).kind == "all_wrong"


@pytest.mark.parametrize("rank", range(4))
def test_the_part_of_a_peer(rank: int) -> None:
    bad = mask(4, 16, 24)
    bad[rank] = True
    region = locate(bad, 4, 0)
    assert (region.kind, region.owners) == ("peer_slice", (rank,))
    assert f"the part of rank {rank}" in region.text
    columns = mask(16, 64)
    columns[:, 16 * rank : 16 * rank + 16] = True
    assert locate(columns, 4, 1).owners == (rank,)


def test_the_parts_of_all_but_one_peer() -> None:
    bad = ~mask(64, 32)
    bad[16:32] = False
    region = locate(bad, 4, 0)
    assert (region.kind, region.owners) == ("peer_slice", (0, 2, 3))


def test_a_block_inside_a_peer_s_part_keeps_the_owner() -> None:
    bad = mask(64, 64)
    bad[32:40, 8:24] = True
    region = locate(bad, 4, 0)
    assert (region.kind, region.owners) == ("tile", (2,))
    assert "only in the part of rank 2" in region.text


def test_rows() -> None:
    bad = mask(100, 40)
    bad[7:12] = True
    region = locate(bad, 4, None)
    assert (region.kind, region.text) == ("row_band", "whole rows 7 to 11 of 100")
    bad[30] = True
    assert locate(bad, 4, None).text == "6 whole rows of 100, the first is row 7"


def test_rows_that_are_a_rank_s_share() -> None:
    bad = mask(64, 40)
    bad[48:64] = True
    region = locate(bad, 4, None)
    assert (region.kind, region.owners) == ("row_band", (3,))


@pytest.mark.parametrize("edge", [8, 16, 32, 64])
def test_what_whole_tiles_leave_over(edge: int) -> None:
    rows = mask(2 * edge + 1, 2 * edge)
    rows[2 * edge :, ::2] = True
    region = locate(rows, 4, None)
    assert (region.kind, region.owners) == ("boundary", ())
    assert f"only row {2 * edge} of {2 * edge + 1}" in region.text
    columns = mask(edge, 3 * edge + edge - 1)
    columns[:, 3 * edge :] = True
    assert f"whole tiles of {edge} leave over" in locate(columns, 4, None).text


def test_left_over_rows_and_columns_together() -> None:
    bad = mask(33, 129)
    bad[32] = True
    bad[:, 128] = True
    region = locate(bad, 4, None)
    assert region.kind == "boundary"
    assert "row 32 of 33 and column 128 of 129" in region.text


def test_one_block_and_one_element() -> None:
    bad = mask(64, 64)
    bad[8:24, 32:48] = True
    region = locate(bad, 4, None)
    assert region.kind == "tile"
    assert "one block of 16 x 16, rows 8 to 23, columns 32 to 47 of 64 x 64" in region.text
    single = mask(64, 64)
    single[5, 6] = True
    assert "one element, row 5, column 6" in locate(single, 4, None).text


@pytest.mark.parametrize(("height", "width"), [(128, 256), (64, 64), (16, 16)])
def test_tiles_of_a_grid(height: int, width: int) -> None:
    bad = mask(4 * height, 4 * width)
    bad[:height, :width] = True
    bad[2 * height : 3 * height, 3 * width :] = True
    region = locate(bad, 4, None)
    assert region.kind == "tile"
    assert f"2 of 16 tiles of {height} x {width}" in region.text


def test_no_region() -> None:
    generator = torch.Generator().manual_seed(0)
    bad = torch.rand(64, 64, generator=generator) < 0.1
    region = locate(bad, 4, 0)
    assert (region.kind, region.owners) == ("scattered", ())


def test_vectors_and_scalars() -> None:
    vector = mask(100)
    vector[10:20] = True
    assert locate(vector, 4, None).kind == "tile"
    assert locate(torch.tensor(True), 4, None).kind == "all_wrong"

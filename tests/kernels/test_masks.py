"""Each mask against a plain formula, ranges against visibility, joining, skipped tiles, and what registering refuses."""

import pytest
import torch
import triton
import triton.language as tl

from flashlab import runtime
from flashlab.errors import ERRORS
from flashlab.kernels import masks
from flashlab.kernels.forward import forward
from flashlab.kernels.joined_masks import key_range, query_range
from flashlab.kernels.masks import Mask, decode, register
from flashlab.kernels.tiles import Tile
from flashlab.problem import AttentionProblem
from kernel_oracle import standard, within_budget

DEVICE = runtime.device()
SLOPES = torch.tensor([0.5, 0.1], device=DEVICE)


def alibi(score, i, j):
    return score - SLOPES.to(score).view(1, -1, 1, 1) * (i - j).abs()


MASKS = {
    "causal": (masks.causal(), {"see": lambda i, j: j <= i}),
    "window": (masks.window(4, 2), {"see": lambda i, j: (j >= i - 4) & (j <= i + 2)}),
    "window_of_one": (masks.window(0, 0), {"see": lambda i, j: j == i}),
    "prefix": (masks.prefix(7), {"see": lambda i, j: (j < 7) | (j <= i)}),
    "alibi": (masks.alibi(SLOPES), {"rescore": alibi}),
    "softcap": (masks.softcap(0.7), {"rescore": lambda s, i, j: 0.7 * torch.tanh(s / 0.7)}),
    "causal & window": (masks.causal() & masks.window(4, 2), {"see": lambda i, j: (j <= i) & (j >= i - 4)}),
    "alibi & softcap": (masks.alibi(SLOPES) & masks.softcap(0.7), {"rescore": lambda s, i, j: 0.7 * torch.tanh(alibi(s, i, j) / 0.7)}),
    "softcap & alibi & causal": (
        masks.softcap(0.7) & masks.alibi(SLOPES) & masks.causal(),
        {"rescore": lambda s, i, j: alibi(0.7 * torch.tanh(s / 0.7), i, j), "see": lambda i, j: j <= i},
    ),
}


WIDE = {  # the queries of places 34 to 49 see some of keys 0 to 15, all of 16 to 47, and some of 48 to 79
    "window": (masks.window(40, 26), {"see": lambda i, j: (j >= i - 40) & (j <= i + 26)}),
    "alibi & window": (masks.alibi(SLOPES[:1]) & masks.window(40, 26), {"see": lambda i, j: (j >= i - 40) & (j <= i + 26), "rescore": lambda s, i, j: s - 0.5 * (i - j).abs()}),
}


@pytest.mark.parametrize("n_q, n_k", [(20, 20), (17, 39), (39, 17)])
@pytest.mark.parametrize("name", MASKS)
def test_forward(name, n_q, n_k):
    mask, oracle = MASKS[name]
    q, k, v = AttentionProblem(n_q, n_k, 8, heads=2, dtype="float32").tensors(0, DEVICE)
    o, lse = forward(q, k, v, *decode(*mask.encode()), 0.5, tile=Tile(16, 16, 4, 1))
    exact, exact_lse = standard(*(x.double() for x in (q, k, v)), scale=0.5, **oracle)
    within_budget("o", o, standard(q, k, v, scale=0.5, **oracle)[0], exact.cpu())
    assert torch.equal(lse == -torch.inf, exact_lse == -torch.inf)


@pytest.mark.parametrize("overlap", [False, True], ids=["plain", "overlapped"])
@pytest.mark.parametrize("name", WIDE)
def test_partly_seen_tiles_lie_on_both_sides_of_whole_ones(name, overlap):
    """The loop over them must jump from one side to the other: for keys, for their places and for values."""
    mask, oracle = WIDE[name]
    q, k, v = AttentionProblem(72, 90, 8, dtype="float32").tensors(0, DEVICE)
    o, lse = forward(q, k, v, *decode(*mask.encode()), 0.5, tile=Tile(16, 16, 4, 1, overlap=overlap))
    exact, exact_lse = standard(*(x.double() for x in (q, k, v)), scale=0.5, **oracle)
    plain, plain_lse = standard(q, k, v, scale=0.5, **oracle)
    within_budget("o", o, plain, exact.cpu())
    within_budget("lse", lse, plain_lse, exact_lse.cpu())


@register
class keys_from:
    """keys_from(first): the keys before `first` are hidden, by their scores alone: no tile is skipped, and no key asked whether it is seen."""

    @triton.jit
    def score(score, batch, head, i, j, first):
        return tl.where(j >= first, score, -float("inf"))


@pytest.mark.parametrize("first", [16, 32, 37])
@pytest.mark.parametrize("n_k", [48, 50])
def test_a_score_of_minus_infinity_for_a_whole_tile_gives_no_nan(first, n_k):
    """After the first tiles every row's maximum is still -inf, also where tiles are seen whole."""
    q, k, v = AttentionProblem(20, n_k, 8, heads=2, dtype="float32").tensors(0, DEVICE)
    o, lse = forward(q, k, v, *decode(*keys_from(first).encode()), 0.5, tile=Tile(16, 16, 4, 1))
    exact, exact_lse = standard(*(x.double() for x in (q, k, v)), scale=0.5, see=lambda i, j: j + 0 * i >= first)
    plain, plain_lse = standard(q, k, v, scale=0.5, see=lambda i, j: j + 0 * i >= first)
    within_budget("o", o, plain, exact.cpu())
    within_budget("lse", lse, plain_lse, exact_lse.cpu())


@triton.jit
def range_kernel(out, first, last, begin, end, mask_params, MASKS: tl.constexpr, OF_KEYS: tl.constexpr):
    if OF_KEYS:
        lo, hi, full_lo, full_hi = key_range(MASKS, mask_params, 0, 0, first, last, begin, end)
    else:
        lo, hi, full_lo, full_hi = query_range(MASKS, mask_params, 0, 0, first, last, begin, end)
    tl.store(out, lo)
    tl.store(out + 1, hi)
    tl.store(out + 2, full_lo)
    tl.store(out + 3, full_hi)


@pytest.mark.parametrize("name", ["causal", "window", "window_of_one", "prefix", "causal & window"])
@pytest.mark.parametrize("n_q, n_k", [(20, 20), (13, 22), (22, 13)])
def test_ranges_hold_all_that_is_visible_and_full_ones_nothing_else(name, n_q, n_k):
    mask, oracle = MASKS[name]
    functions, params = decode(*mask.encode())
    out = torch.empty(4, dtype=torch.int32, device=DEVICE)
    i, j = torch.arange(n_k - n_q, n_k), torch.arange(n_k)
    see = oracle["see"](i[:, None], j[None, :])
    for of_keys, rows, cols, seen in ((True, i, j, see), (False, j, i, see.T)):
        begin, end = int(cols[0]), int(cols[-1]) + 1
        for at in range(0, len(rows), 6):
            tile = rows[at : at + 6]
            range_kernel[(1,)](out, int(tile[0]), int(tile[-1]), begin, end, params, functions, of_keys)
            lo, hi, full_lo, full_hi = out.tolist()
            visited, full = (cols >= lo) & (cols < hi), (cols >= full_lo) & (cols < full_hi)
            assert not (seen[at : at + 6].any(0) & ~visited).any(), (of_keys, at)
            assert seen[at : at + 6].all(0)[full & visited].all(), (of_keys, at)


@pytest.mark.parametrize("name, tiles", [("causal", 10), ("window", 10), ("window_of_one", 4), ("prefix", 10), ("alibi", 16)])
def test_tiles_that_nobody_sees_are_skipped(name, tiles):
    """A key tile that is not visited may hold anything: fill all of it with nan and see which outputs notice."""
    mask, _ = MASKS[name]
    n, block, noticed = 64, 16, 0
    q, k, v = AttentionProblem(n, n, 8, heads=2, dtype="float32").tensors(0, DEVICE)
    for at in range(0, n, block):
        poisoned = v.clone()
        poisoned[:, :, at : at + block] = torch.nan
        o, _ = forward(q, k, poisoned, *decode(*mask.encode()), 0.5, tile=Tile(block, block, 4, 1))
        noticed += int(o[0, 0].isnan().any(1).reshape(-1, block).any(1).sum())
    assert noticed == tiles  # of 16


def test_encode_and_decode_keep_numbers_tensors_and_their_order():
    mask = masks.window(3, 2**30) & masks.alibi(SLOPES) & masks.softcap(0.1)
    functions, params = decode(*mask.encode())
    assert params[0] == (3, 2**30) and type(params[0][0]) is int and torch.equal(params[1][0], SLOPES) and params[2] == (0.1,)
    assert functions.limits == (True, False, False) and functions.rescores == (False, True, True)
    assert decode(*Mask().encode())[1] == () and repr(mask).startswith("window(3, ") and repr(Mask()) == "no mask"


def test_a_changed_mask_reads_differently():
    """Triton keys its cache of compiled kernels by the text of a constant."""

    def make(n):
        @register
        class changing:
            if n == 1:

                @triton.jit
                def visible(batch, head, i, j):
                    return j <= i
            else:

                @triton.jit
                def visible(batch, head, i, j):
                    return j < i

        return repr(decode(*changing().encode())[0])

    assert make(1) != make(2)


@pytest.mark.parametrize("ranges", [["key_range"], ["query_range"], ["key_range", "query_range"]])
def test_a_range_alone_is_refused_by_its_own_name(ranges):
    given = {name: masks.window.given[name] for name in ranges}
    with pytest.raises(ERRORS["mask_range"][0], match=f"^the mask loose defines {' and '.join(ranges)} but not visible, so"):
        register(type("loose", (), {"score": masks.alibi.given["score"], **given}))


def test_only_what_is_annotated_as_whole_must_be_whole():
    @register
    class mixture:
        @triton.jit
        def visible(batch, head, i, j, most: int, loss):
            return i - j <= most

        @triton.jit
        def score(score, batch, head, i, j, most, loss):
            return score - loss

    for given in (2.0, 2.5):
        with pytest.raises(ERRORS["mask_whole"][0], match=f"^the mask mixture takes a whole number for most, and was given the float {given}"):
            mixture(given, 0.5)
        with pytest.raises(ERRORS["mask_whole"][0], match="for length"):
            masks.prefix(given)
    with pytest.raises(ERRORS["mask_whole"][0], match="for most, and was given a tensor of shape \\(2,\\). Pass an int.$"):
        mixture(torch.tensor([2, 3]), 0.5)
    mixture(2, 0.5), mixture(2, torch.tensor(1)), masks.softcap(50), masks.softcap(50.0)


def test_only_what_is_annotated_as_per_head_must_have_a_number_for_each():
    @register
    class tilted:
        @triton.jit
        def score(score, batch, head, i, j, slopes: masks.per_head, table):
            return score * tl.load(slopes + head) + tl.load(table)

    one, three = torch.ones(1, device=DEVICE), torch.ones(3, device=DEVICE)
    tilted(three, one).check_heads(3)
    for wrong, called in ((one, r"a tensor of shape \(1,\)"), (three[None], r"a tensor of shape \(1, 3\)"), (0.5, r"the number 0\.5")):
        with pytest.raises(ERRORS["mask_per_head"][0], match=f"^slopes of the mask tilted is {called};"):
            (masks.causal() & tilted(wrong, one)).check_heads(3)


def test_an_annotation_may_be_text_that_names_the_module_anyhow():
    def score(score, batch, head, i, j, slopes):
        return score * tl.load(slopes + head)

    for annotation in ("per_head", "masks.per_head", "flashlab.kernels.masks.per_head"):
        score.__annotations__["slopes"] = annotation
        tilted = register(type("tilted", (), {"score": triton.jit(score)}))
        with pytest.raises(ERRORS["mask_per_head"][0], match="^slopes of the mask tilted is a tensor of shape"):
            tilted(torch.ones(1)).check_heads(3)


def test_wrong_masks_are_named():
    @triton.jit
    def visible(batch, head, i, j):
        return j <= i

    @triton.jit
    def score(score, batch, head, i, j, a):
        return score * a

    bad = {
        "mask_function": (
            lambda: register(type("odd", (), {"visible": visible, "visble": visible})),
            "the mask odd defines visble, which no kernel calls. A mask may define visible, key_range, query_range, score, dscore.",
        ),
        "mask_plain": (
            lambda: register(type("half", (), {"visible": lambda batch, head, i, j: j <= i, "score": score})),
            "the mask half defines visible without @triton.jit, so no kernel can call it. Put @triton.jit above it.",
        ),
        "mask_empty": (
            lambda: register(type("hollow", (), {})),
            "the mask hollow defines neither visible nor score, so it does nothing. Define one, under @triton.jit.",
        ),
        "mask_range": (
            lambda: register(type("loose", (), {"score": score, "key_range": masks.window.given["key_range"]})),
            "the mask loose defines key_range but not visible, so nothing would hide what lies between a range and its tiles' edges."
            " Define visible too.",
        ),
        "mask_arguments": (
            lambda: register(type("uneven", (), {"visible": visible, "score": score})),
            "the functions of the mask uneven do not end with the same parameters. Each takes the kernel's arguments first"
            " (visible: 4, score: 5), then the mask's own parameters.",
        ),
        "mask_params": (lambda: masks.window(3), "the mask window was given 1 parameter(s), but its functions take 2. Pass 2."),
        "mask_number": (
            lambda: masks.window(2**31 - 1, 0).encode(),
            "the mask window was given 2,147,483,647; a whole number in a mask is at most 1,073,741,824 (2**30) in size. For no limit, give that.",
        ),
        "mask_whole": (lambda: masks.window(2, 1.0), "the mask window takes a whole number for right, and was given the float 1.0. Pass an int."),
        "mask_value": (
            lambda: masks.window(3, None).encode(),
            "a parameter of the mask window is of type NoneType; it must be an int, a float or a tensor. Convert it first.",
        ),
        "mask": (
            lambda: masks.causal() & 3,
            "mask is of type int; it must be a Mask, e.g. masks.window(128, 0), or two joined by &. For one given as a"
            " tensor write a visible() that loads it: see flashlab/kernels/masks.py.",
        ),
    }
    for name, (trigger, text) in bad.items():
        with pytest.raises(ERRORS[name][0]) as caught:
            trigger()
        assert str(caught.value) == text, name

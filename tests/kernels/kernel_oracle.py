"""The oracle: attention in float64 on the CPU with torch's own autograd, and the error budget that kernels are held to.

check(run, q, k, v) holds a forward to it: run(q, k, v, causal=, scale=, ...) -> (o, lse or None). check_gradients(ours, theirs,
leaves, do, dlse) holds o, lse and the gradients to it: ours and theirs(q, k, v[, sink]) -> (o, lse).
"""

from __future__ import annotations

from flashlab import runtime  # before triton

import torch

from flashlab.problem import AttentionProblem

FLOOR = {torch.float32: 2e-6, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}  # a few roundings of a number near 1


def standard(q, k, v, *, scale, causal=False, see=None, rescore=None, sink=None):
    """(o, lse) in q's dtype: plain PyTorch. `see(i, j)` and `rescore(score, i, j)` are torch functions, i a place among the keys."""
    group = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
    n_q, n_k = q.shape[2], k.shape[2]
    i = torch.arange(n_q, device=q.device)[:, None] + n_k - n_q
    j = torch.arange(n_k, device=q.device)[None, :]
    scores = q @ k.mT * scale
    scores = rescore(scores, i, j) if rescore else scores
    hidden = torch.zeros(n_q, n_k, dtype=torch.bool, device=q.device)
    hidden = hidden | (j > i) if causal else hidden
    hidden = hidden | ~see(i, j) if see else hidden
    scores = scores.masked_fill(hidden, -torch.inf)
    whole = scores if sink is None else torch.cat([scores, sink.to(scores.dtype).view(1, -1, 1, 1).expand(*scores.shape[:3], 1)], -1)
    blind = hidden.all(-1) & torch.tensor(sink is None)
    lse = torch.where(blind, -torch.inf, torch.logsumexp(whole.masked_fill(blind[..., None], 0), -1)) if n_k or sink is not None else scores.new_full(scores.shape[:3], -torch.inf)
    weights = torch.softmax(whole.masked_fill(blind[..., None], 0), -1)[..., :n_k].masked_fill(hidden, 0)
    return weights @ v, lse


def within_budget(name, given, plain, exact, times=2.0, relative=0.0):
    """`given` is at most `times` as far from float64 as plain PyTorch in the same dtype, plus a few roundings and `relative` of its size."""
    exact = exact.to(torch.float64)
    size = max(exact.abs().max().item(), 1.0) if exact.numel() else 1.0
    ours, theirs = ((x.double().cpu() - exact).abs().max().item() if exact.numel() else 0.0 for x in (given, plain))
    assert torch.isfinite(given).all(), f"{name} has a nan or an inf"
    assert ours <= times * theirs + (FLOOR[given.dtype] / 2 + relative) * size, f"{name}: error {ours:.2e} against {theirs:.2e} of plain PyTorch"


def check(run, q, k, v, *, causal=False, scale=None, sink=None, **options):
    """Run a forward and hold o and, where there is one, lse to the budget; (o, lse). `options` are passed to run alone."""
    o, lse = run(q, k, v, causal=causal, scale=scale, **({} if sink is None else {"sink": sink}), **options)
    scale = q.shape[3] ** -0.5 if scale is None else scale
    exact_o, exact_lse = standard(*(x.double().cpu() for x in (q, k, v)), scale=scale, causal=causal, sink=None if sink is None else sink.cpu())
    plain_o, plain_lse = standard(q, k, v, scale=scale, causal=causal, sink=sink)
    blind = exact_lse == -torch.inf
    assert o.shape == q.shape and o.dtype == q.dtype and (o.cpu()[blind] == 0).all()
    within_budget("o", o, plain_o, exact_o)
    if lse is not None:
        assert lse.shape == q.shape[:3] and lse.dtype == torch.float32 and torch.equal(lse.cpu() == -torch.inf, blind)
        within_budget("lse", lse.cpu()[~blind], plain_lse.cpu()[~blind], exact_lse[~blind])
    return o, lse


def outcome(f, leaves, do, dlse):
    """(o, lse, and the gradient of each leaf) of f(*leaves) -> (o, lse)."""
    leaves = [x.detach().requires_grad_() for x in leaves]
    o, lse = f(*leaves)
    return o.detach(), lse.detach(), *torch.autograd.grad((o, lse), leaves, (do.to(o), dlse.to(lse)), materialize_grads=True)


def check_gradients(ours, theirs, leaves, do, dlse):
    """Hold o, lse and the gradient of each leaf, q, k, v and perhaps a sink, to the budget; theirs is plain PyTorch."""
    got = outcome(ours, leaves, do, dlse)
    if got[0].is_cuda:
        torch.cuda.synchronize()  # a kernel's fault is told here, not of PyTorch's
    exact = outcome(theirs, [x.double().cpu() for x in leaves], do.double().cpu(), dlse.double().cpu())
    plain = outcome(theirs, leaves, do, dlse)
    blind = exact[1] == -torch.inf
    assert got[0].shape == leaves[0].shape and torch.equal(got[1].cpu() == -torch.inf, blind) and (got[0].cpu()[blind] == 0).all()
    within_budget("o", got[0], plain[0], exact[0])
    within_budget("lse", got[1].cpu()[~blind], plain[1].cpu()[~blind], exact[1][~blind])
    # The weights come back as exp(score - lse), of which float32 has rounded both, and plain PyTorch keeps them.
    of_lse = 2**-23 * exact[1][~blind].abs().max().item() if (~blind).any() else 0.0
    for what, x, a, b, c in zip(("dq", "dk", "dv", "dsink"), leaves, got[2:], plain[2:], exact[2:]):
        assert a.shape == x.shape and a.dtype == x.dtype
        within_budget(what, a, b, c, times=3, relative=of_lse)


def tensors(n_q, n_k, head_dim, heads=2, kv_heads=None, dtype="float32", batch=1):
    """Random q, k, v where kernels run here."""
    return AttentionProblem(n_q, n_k, head_dim, batch=batch, heads=heads, kv_heads=kv_heads, dtype=dtype).tensors(device=runtime.device())

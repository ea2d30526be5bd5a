"""The whole network as one tensor: parts and biases sum to the residual stream; literal oracles; bad input."""

import pytest
import torch
from torch import nn

import headtree as ht
from headtree.models import token_tensor
from tests.depth.conftest import ORDERS, network
from tests.models import zoo

FAMILIES = ["bert", "gpt2", "llama", "vit", "t5", "gemma2", "gpt_oss", "opt", "dinov2", "xlnet", "modernbert"]

WITHOUT_BIASES = ("llama", "t5", "gemma2", "modernbert")


def with_biases(model):
    """Biases of new models are zero, and would hide where they go."""
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 1:
                parameter.add_(0.3 * torch.randn(parameter.shape, generator=generator))
    return model


def check_sums(found):
    """At every depth, parts and biases sum to the residual stream."""
    total = torch.from_numpy(found.parts.sum("key").values) + found.bias
    largest = found.residual.abs().amax(dim=(1, 2), keepdim=True)
    assert ((total - found.residual).abs() / largest).max() < 1e-4


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.filterwarnings("ignore")
def test_parts_and_biases_sum_to_the_residual_stream(name):
    case = zoo.ALL[name]
    for part in case.parts:
        if part == "cross":
            continue
        view = ht.ModelView(with_biases(case.build()))
        (found, _) = view.token_tensor(inputs=case.read(), part=part)
        (expected, _) = view.residual(inputs=case.read(), part=part)
        torch.testing.assert_close(found.residual, expected)
        check_sums(found)
        assert bool(found.bias.any()) == (part == "decoder" or name not in WITHOUT_BIASES)


@pytest.mark.parametrize(("name", "n"), [("txl", 20), ("vit", None)])
def test_they_do_in_the_bundled_networks(name, n):
    bundled = ht.load_bundled(name)
    given = {key: value[:, :n] if n else value for key, value in bundled.inputs[0].items()}
    view = ht.ModelView(bundled.model)
    (found,) = view.token_tensor(inputs=given)
    (expected,) = view.residual(inputs=given)
    torch.testing.assert_close(found.residual, expected, atol=1e-4, rtol=1e-4)
    total = found.bias.clone()
    prepared = view.prepare(inputs=given, kind="probs")
    with prepared.view.ready(), torch.no_grad():
        frozen = token_tensor.frozen_pass(prepared, prepared.items[0])
        for start in range(0, frozen.n_tokens, 10):
            tokens = list(range(start, min(frozen.n_tokens, start + 10)))
            total += torch.stack([parts.sum(dim=0) for parts in frozen.parts(tokens)])
    largest = expected.abs().amax(dim=(1, 2), keepdim=True)
    assert ((total - expected).abs() / largest).max() < 1e-4


# -- literal oracles -----------------------------------------------------------------------------------------------


def frozen_norm(norm, x, part):
    """A layer norm with the scale it has at x."""
    scale = (x.var(dim=-1, unbiased=False, keepdim=True) + norm.eps).rsqrt()
    return (part - part.mean(dim=-1, keepdim=True)) * scale * norm.weight


def frozen_heads(heads, x, part):
    """Attention with the probabilities it has at x, without biases."""
    attention = heads.attention
    q, k, _ = attention.qkv(x).view(1, -1, 3, 2, 8).permute(2, 0, 3, 1, 4)
    scores = q @ k.mT / 8**0.5
    if attention.causal:
        scores = scores.masked_fill(torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1), -torch.inf)
    v = (part @ attention.qkv.weight.T).view(1, -1, 3, 2, 8).permute(2, 0, 3, 1, 4)[2]
    return (scores.softmax(-1) @ v).transpose(1, 2).reshape(x.shape) @ heads.out.weight.T


def frozen_mlp(mlp, x, part):
    """An MLP with the ratio of result to argument that its activation function has at x, without biases."""
    inner = mlp[0](x)
    return (part @ mlp[0].weight.T * (mlp[1](inner) / inner)) @ mlp[2].weight.T


def sent_alone(block, x, part):
    """One token through one block that is frozen at x."""
    if block.order == "post":
        before = block.heads(x) + x
        y = block.first(before)
        z = frozen_norm(block.first, before, frozen_heads(block.heads, x, part) + part)
        before = y + block.mlp(y)
        return frozen_norm(block.second, before, z + frozen_mlp(block.mlp, y, z))
    after = frozen_heads(block.heads, block.first(x), frozen_norm(block.first, x, part))
    if block.order == "parallel":
        return after + frozen_mlp(block.mlp, block.second(x), frozen_norm(block.second, x, part)) + part
    z, y = part + after, x + block.heads(block.first(x))
    return z + frozen_mlp(block.mlp, block.second(y), frozen_norm(block.second, y, z))


@pytest.mark.parametrize("order", ORDERS)
def test_a_token_sent_alone_through_the_frozen_blocks(order):
    net = network(order)
    x = torch.randn(1, 6, 16, generator=torch.Generator().manual_seed(0))
    (found,) = ht.ModelView(net).token_tensor(inputs=x)
    parts = torch.from_numpy(found.parts.values)
    with torch.no_grad():
        for token in range(6):
            part = torch.zeros_like(x)
            part[:, token] = x[:, token]
            whole = x
            for depth, block in enumerate(net):
                part, whole = sent_alone(block, whole, part), block(whole)
                torch.testing.assert_close(parts[token, depth + 1], part[0], atol=2e-4, rtol=1e-3)


class Gated(nn.Module):
    """A block whose MLP has a gate, or another function of single numbers."""

    def __init__(self, act, gate=True):
        super().__init__()
        heads = network("pre", n_layers=1)[0].heads
        self.heads, self.act = heads, act
        self.gate, self.up, self.down = (nn.Linear(16, 16) for _ in range(3))
        self.is_gated = gate

    def forward(self, x):
        x = x + self.heads(x)
        inner = self.act(self.gate(x)) * self.up(x) if self.is_gated else self.act(self.up(x))
        return x + self.down(inner)


def square(x):
    return torch.relu(x) ** 2


def product(x):
    y = torch.relu(x)
    return y * y


def slow_gelu(x):
    return 0.5 * x * (1 + torch.tanh(0.79788456 * (x + 0.044715 * x**3)))


@pytest.mark.parametrize("act", [torch.nn.functional.silu, torch.sigmoid, slow_gelu, square, product])
def test_of_a_gated_mlp_the_gate_is_frozen(act):
    torch.manual_seed(0)
    net = nn.Sequential(Gated(act), Gated(act)).eval()
    x = torch.randn(1, 6, 16)
    (found,) = ht.ModelView(net).token_tensor(inputs=x)
    check_sums(found)
    parts = torch.from_numpy(found.parts.values)
    with torch.no_grad():
        for token in range(6):
            part = torch.zeros_like(x)
            part[:, token] = x[:, token]
            whole = x
            for depth, block in enumerate(net):
                middle = whole + block.heads(whole)
                part = part + frozen_heads(block.heads, whole, part)
                inner = block.act(block.gate(middle)) * (part @ block.up.weight.T)
                part, whole = part + inner @ block.down.weight.T, block(whole)
                torch.testing.assert_close(parts[token, depth + 1], part[0], atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("act", [torch.relu, square, product, slow_gelu, torch.tanh, nn.functional.mish])
def test_activation_functions_are_ratios(act):
    torch.manual_seed(0)
    net = nn.Sequential(Gated(act, gate=False)).eval()
    x = torch.randn(1, 6, 16)
    (found,) = ht.ModelView(net).token_tensor(inputs=x)
    block = net[0]
    with torch.no_grad():
        middle = x + block.heads(x)
        inner = block.up(middle)
        part = torch.zeros_like(x)
        part[:, 2] = x[:, 2]
        part = part + frozen_heads(block.heads, x, part)
        part = part + (part @ block.up.weight.T * (act(inner) / inner)) @ block.down.weight.T
    torch.testing.assert_close(torch.from_numpy(found.parts.values)[2, 1], part[0], atol=1e-5, rtol=1e-4)


def test_where_its_argument_is_zero_an_activation_function_has_its_slope():
    torch.manual_seed(0)
    net = nn.Sequential(Gated(torch.nn.functional.gelu, gate=False)).eval()
    with torch.no_grad():
        net[0].up.weight.zero_()
        net[0].up.bias.zero_()
        net[0].up.weight[0, 0], net[0].up.weight[0, 1] = 1.0, -1.0
    x = torch.ones(1, 3, 16)
    net[0].heads.out.weight.data.zero_()
    net[0].heads.out.bias.data.zero_()
    (found,) = ht.ModelView(net).token_tensor(inputs=x)
    check_sums(found)
    assert torch.isfinite(torch.from_numpy(found.parts.values)).all()


# -- reductions ----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def causal():
    import transformers

    torch.manual_seed(0)
    config = transformers.GPT2Config(**zoo._GPT2)
    model = with_biases(transformers.GPT2LMHeadModel(config).eval())
    ids = torch.randint(5, 60, (1, 9), generator=torch.Generator().manual_seed(3))
    return ht.ModelView(model), {"input_ids": ids}


def test_reductions_are_those_of_the_parts(causal):
    view, given = causal
    (found,) = view.token_tensor(inputs=given)
    parts = torch.from_numpy(found.parts.values).permute(1, 2, 0, 3)[1:]  # layer, query, key, feature
    final = found.residual[-1]
    norms, shares = found.reduce(), found.reduce("projection")
    assert norms.shape == (3, 9, 9)
    assert (norms.kind, shares.kind) == ("weighted", "signed")
    torch.testing.assert_close(norms.values, parts.norm(dim=-1))
    expected = torch.einsum("lqkw,qw->lqk", parts, final) / (final * final).sum(-1)[:, None]
    torch.testing.assert_close(shares.values, expected, atol=1e-6, rtol=1e-4)
    bias = (found.bias[-1] * final).sum(-1) / (final * final).sum(-1)
    torch.testing.assert_close(shares.values[-1].sum(-1) + bias, torch.ones(9))


def test_later_tokens_contribute_nothing_and_are_masked(causal):
    view, given = causal
    (found,) = view.token_tensor(inputs=given)
    att = found.reduce("projection")
    assert torch.equal(att.mask[0], torch.ones(9, 9, dtype=torch.bool).triu(1))
    assert att.provenance["causal"]
    assert att.provenance["token_tensor"] == {"by": "projection"}
    assert len(ht.organize(att).trees.head.labels[0]) == 3


def test_contributions_and_the_bias_are_the_logit(causal):
    view, given = causal
    (found,) = view.token_tensor(inputs=given)
    with torch.no_grad():
        logits = view.model(**given).logits[0]
    prepared = view.prepare(inputs=given, kind="probs")
    for target in (None, 7):
        contributed = found.reduce("logit", target).values[-1].sum(-1)
        with prepared.view.ready(), torch.no_grad():
            frozen = token_tensor.frozen_pass(prepared, prepared.items[0])
            slope = frozen.directions(frozen.traced.logits, target)
        bias = (found.bias[-1] * slope).sum(-1)
        final = view.model.transformer.ln_f.bias @ view.model.lm_head.weight.T
        chosen = logits.argmax(-1) if target is None else torch.full((9,), target)
        expected = logits.gather(1, chosen[:, None])[:, 0] - final[chosen]
        torch.testing.assert_close((contributed + bias).detach(), expected.detach(), atol=1e-4, rtol=1e-4)


def test_of_one_row_of_logits_the_queries_that_it_reads():
    bundled = ht.load_bundled("vit")
    prepared = ht.ModelView(bundled.model).prepare(inputs=bundled.inputs[0], kind="probs")
    with prepared.view.ready(), torch.no_grad():
        frozen = token_tensor.frozen_pass(prepared, prepared.items[0])
        slope = frozen.directions(frozen.traced.logits, 3)
    assert slope[0].abs().max() > 0
    assert slope[1:].abs().max() == 0


def test_batches_within_a_memory_limit_give_the_same(causal, monkeypatch):
    view, given = causal
    (whole,) = view.token_tensor(inputs=given)
    monkeypatch.setattr(token_tensor, "_ROWS", 1)  # one token at a time
    (found,) = view.token_tensor(inputs=given)
    torch.testing.assert_close(found.reduce().values, whole.reduce().values, atol=1e-6, rtol=1e-5)


def test_half_precision_is_frozen_in_single_precision(causal):
    import transformers

    torch.manual_seed(0)
    model = transformers.GPT2LMHeadModel(transformers.GPT2Config(**zoo._GPT2)).eval().bfloat16()
    (found,) = ht.ModelView(model).token_tensor(inputs=causal[1])
    assert found.residual.dtype == found.reduce().values.dtype == torch.float32


# -- bad input -----------------------------------------------------------------------------------------------------


def test_an_operation_that_cannot_be_frozen_is_named():
    net = nn.Sequential(Gated(torch.nn.functional.softplus, gate=False)).eval()
    with pytest.raises(ht.HeadtreeError, match=r"cannot be frozen.*aten.softplus.default in '0'"):
        ht.ModelView(net).token_tensor(inputs=torch.randn(1, 6, 16))


def test_a_change_that_the_graph_does_not_see_is_named():
    class Overwrites(Gated):
        def forward(self, x):
            x = super().forward(x).clone()
            y = x * 1
            y[:, 1:] = x[:, 1:] + 1
            return y + self.heads(y)

    net = nn.Sequential(Overwrites(torch.nn.functional.gelu)).eval()
    with pytest.raises(ht.HeadtreeError, match=r"cannot be frozen|no residual stream"):
        ht.ModelView(net).token_tensor(inputs=torch.randn(1, 6, 16))


def test_inputs_too_long_for_the_limit_say_what_would_fit(causal):
    view, _ = causal
    ids = torch.randint(5, 60, (1, 60))
    with pytest.raises(
        ht.HeadtreeError, match=r"60 tokens needs about .* memory_limit is .* tokens would fit"
    ) as error:
        view.token_tensor(inputs={"input_ids": ids}, memory_limit=2e5)
    fits = int(str(error.value).split("tokens=")[1].split(",")[0])
    view.token_tensor(inputs={"input_ids": ids[:, :fits]}, memory_limit=2e5)
    with pytest.raises(ht.HeadtreeError, match="no input would fit"):
        view.token_tensor(inputs={"input_ids": ids}, memory_limit=10)


def test_bad_requests(causal):
    view, given = causal
    with pytest.raises(ht.HeadtreeError, match="layers and heads must be left out, since tokens go through all"):
        view.token_tensor(inputs=given, layers=[0])
    with pytest.raises(ht.HeadtreeError, match="memory_limit must be"):
        view.token_tensor(inputs=given, memory_limit="3MB")
    (found,) = view.token_tensor(inputs=given)
    with pytest.raises(ht.HeadtreeError, match="by must be one of"):
        found.reduce("size")
    with pytest.raises(ht.HeadtreeError, match="target is for by='logit'"):
        found.reduce("norm", 3)
    with pytest.raises(ht.HeadtreeError, match="target must be between -64 and 63 for 64 logits, got 99"):
        found.reduce("logit", 99)
    (found,) = ht.ModelView(zoo.ALL["gpt2"].build()).token_tensor(inputs=given)
    with pytest.raises(ht.HeadtreeError, match="returns no logits"):
        found.reduce("logit")

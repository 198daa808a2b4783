"""What a model weighs and what a token of it costs: exact, for each card and stage. Plan and twin both ask here.

Standard library only: the twin reads it in the engine's environment.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

VOCAB_PADDING = 64
"""Engines round the vocabulary up to this before they split it (`DEFAULT_VOCAB_PADDING_SIZE` of vLLM)."""
FULL, WINDOW, RECURRENT, NOTHING = "full", "window", "recurrent", ""
DENSE, EXPERTS = "dense", "experts"
Bounds = tuple[float, float]


@dataclass(frozen=True)
class Layer:
    """What a layer does with other tokens, and with each token alone."""

    mixer: str = FULL
    """FULL keeps keys and values of every token, WINDOW of the last ones, RECURRENT a state of fixed size."""
    feed_forward: str = DENSE


@dataclass(frozen=True)
class Quantization:
    """Which matrices are narrower than the model's dtype. Embeddings, output, norms and routers never are."""

    method: str
    bits: float
    """Of a weight with its share of scales and zero points."""
    experts_only: bool = False
    kept_mixers: frozenset[int] = frozenset()
    """Layers whose attention, and whose feed-forward, stays as it was."""
    kept_feed_forwards: frozenset[int] = frozenset()
    block: int = 0
    """Side of the square of weights that shares a scale, which a split must not cut; 0 without squares."""


@dataclass(frozen=True, kw_only=True)
class ModelShape:
    """Sizes of a decoder. Parameters are counts of numbers, not bytes."""

    layout: tuple[Layer, ...]
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    attention: int
    """Parameters of the matrices of one attention layer."""
    whole_attention: int
    """The part of them that each cached head belongs to: keys and values, or the projections to a latent vector."""
    feed_forward: int = 0
    """One dense feed-forward."""
    intermediate: int = 0
    """Width of a feed-forward that is split over cards: of an expert where there are experts, else the dense one."""
    tied_embeddings: bool = False
    small: int = 0
    """Norms and biases of one layer, which every card holds."""
    latent_dim: int = 0
    """Multi-head latent attention: width of the one cached vector a token and layer; 0 without it."""
    experts: int = 0
    expert: int = 0
    """Parameters of one routed expert."""
    shared_experts: int = 0
    """Parameters of a layer's experts that every token passes, and of its router."""
    recurrent: int = 0
    """Parameters of one recurrent layer's mixer."""
    window: int = 0
    """Tokens that a windowed layer keeps."""
    tables: int = 0
    """Learned positions, or the cosines and sines of rotary ones: held whole by every card."""
    vision: int = 0
    """Parameters of a tower for pictures or sound, from its width and depth; 0 without one."""
    dtype: str = "bfloat16"
    max_positions: int = 0
    """0 when the config does not say."""
    yarn_positions: int = 0
    """What releases before 0.21 make of `max_positions` with YaRN scaling; 0 without it."""
    quantization: Quantization | None = None
    kv_dtype: str = "auto"
    """What `--kv-cache-dtype auto` means for this checkpoint."""
    why_not_linear: str = ""
    """Why a token has no fixed price, in words; empty when it has one."""
    bounded: bool = True
    """False where not even the least and the most that a sequence keeps can be told."""
    estimated: str = ""
    """Why the weights are not exact, in words; empty when they are."""
    family: str = field(default="", compare=False)
    """The config's model_type."""

    @property
    def layers(self) -> int:
        return len(self.layout)

    @property
    def cached_heads(self) -> int:
        return 1 if self.latent_dim else self.kv_heads

    def is_linear_up_to(self, tokens: int | None) -> bool:
        """Whether each token costs the same in sequences of that length, which no window cuts short."""
        if not self.why_not_linear:
            return True
        only_windows = self.bounded and all(layer.mixer in (FULL, WINDOW) for layer in self.layout)
        return only_windows and tokens is not None and tokens <= self.window

    @property
    def parameters(self) -> int:
        """Of the whole model: what its card on the hub counts."""
        tables = self.vocab * self.hidden * (1 if self.tied_embeddings else 2)
        layers = sum(self._mixer(layer) + self._feed_forward(layer) + self.small for layer in self.layout)
        return round(layers) + tables + self.hidden + self.vision

    @property
    def padded_vocab(self) -> int:
        return -(-self.vocab // VOCAB_PADDING) * VOCAB_PADDING

    def weights_bytes(self, dtype_bytes: float, tp: int = 1, pp: int = 1, ep: int = 0) -> float:
        """On the card that holds most: the fullest of `stage_weights_bytes`."""
        return max(self.stage_weights_bytes(dtype_bytes, tp, pp, ep))

    def stage_weights_bytes(self, dtype_bytes: float, tp: int = 1, pp: int = 1, ep: int = 0) -> tuple[float, ...]:
        """Bytes on each card of each stage.

        Matrices and vocabulary are split over `tp` cards, experts over `ep` where that is not 0, layers over `pp`
        stages; keys and values of fewer heads than cards are held twice. The first stage has the embedding, the last
        one the output, both one table if it is tied.
        """
        table = self.padded_vocab * self.hidden / tp * dtype_bytes
        everywhere = self.tables * dtype_bytes
        stages, start = [], 0
        for stage, count in enumerate(stage_layers(self.layers, pp)):
            first, last = stage == 0, stage == pp - 1
            held = (
                sum(self._layer_bytes(index, dtype_bytes, tp, ep or tp) for index in range(start, start + count))
                + everywhere
            )
            held += table * (first + last - (first and last and self.tied_embeddings))
            held += first * self.vision / tp * dtype_bytes + last * self.hidden * dtype_bytes
            stages.append(held)
            start += count
        return tuple(stages)

    def kv_bytes_per_token(self, kv_dtype_bytes: float, tp: int = 1, pp: int = 1) -> float:
        """Bytes of keys and values of a token on each card of the fullest stage, were no layer windowed or recurrent.

        Heads fewer than cards are replicated; a latent vector is not split at all; stages split layers.
        """
        return max(stage_layers(self.layers, pp)) * self.kv_bytes_per_token_and_layer(kv_dtype_bytes, tp)

    def kv_bytes_per_token_and_layer(self, kv_dtype_bytes: float, tp: int = 1) -> float:
        """Of one layer that attends to every token."""
        if self.latent_dim:
            return self.latent_dim * kv_dtype_bytes
        return 2 * max(1, self.kv_heads // tp) * self.head_dim * kv_dtype_bytes

    def sequence_bytes(self, tokens: int, step_tokens: int, kv_dtype_bytes: float, tp: int = 1, pp: int = 1) -> Bounds:
        """The least and the most that one sequence keeps on a card of the fullest stage.

        The least: windowed layers hold their window and the tokens of a running step, recurrent ones nothing. The
        most: every layer keeps every token, as in engines that do not know the difference.
        """
        price = self.kv_bytes_per_token_and_layer(kv_dtype_bytes, tp)
        windowed = min(tokens, self.window + step_tokens)
        kept = {FULL: tokens, WINDOW: windowed, RECURRENT: 0, NOTHING: 0}
        stages, start = [], 0
        for count in stage_layers(self.layers, pp):
            stages.append(sum(kept[layer.mixer] for layer in self.layout[start : start + count]))
            start += count
        return price * max(stages), price * tokens * max(stage_layers(self.layers, pp))

    def _layer_bytes(self, index: int, dtype_bytes: float, tp: int, ep: int) -> float:
        layer, narrow = self.layout[index], self._narrow_bytes(dtype_bytes)
        quantized = self.quantization
        mixer = feed_forward = narrow
        if quantized is None or quantized.experts_only or index in quantized.kept_mixers:
            mixer = dtype_bytes
        if quantized is None or index in quantized.kept_feed_forwards:
            feed_forward = dtype_bytes
        shared = dtype_bytes if quantized is None or quantized.experts_only else feed_forward
        held = self._mixer(layer, tp) * mixer + self.small * dtype_bytes
        if layer.feed_forward == EXPERTS:
            router = self.experts * self.hidden
            routed = self.experts * self.expert / ep * feed_forward
            return held + routed + (self.shared_experts - router) / tp * shared + router * dtype_bytes
        return held + self._feed_forward(layer) / tp * shared

    def _narrow_bytes(self, dtype_bytes: float) -> float:
        return self.quantization.bits / 8 if self.quantization else dtype_bytes

    def _mixer(self, layer: Layer, tp: int = 1) -> float:
        if layer.mixer in (FULL, WINDOW):
            held = self.whole_attention * max(1, self.cached_heads // tp) / self.cached_heads
            return (self.attention - self.whole_attention) / tp + held
        return self.recurrent / tp if layer.mixer == RECURRENT else 0

    def _feed_forward(self, layer: Layer) -> int:
        if layer.feed_forward == EXPERTS:
            return self.experts * self.expert + self.shared_experts
        return self.feed_forward if layer.feed_forward == DENSE else 0


def stage_layers(layers: int, stages: int) -> Sequence[int]:
    """How many layers each pipeline stage gets: what is left over goes to the stages before the last (vLLM's
    `get_pp_indices`), since the last one has the output and the first one the embedding."""
    counts = [layers // stages] * stages
    for offset in range(2, layers % stages + 2):
        counts[-offset] += 1
    return counts

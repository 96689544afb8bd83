"""Names of Lamina's options in other frameworks, for the advice of errors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol


class Named(Protocol):
    """The part of an `Interface` on which advice depends."""

    @property
    def name(self) -> str: ...

    @property
    def owner(self) -> type | None: ...


# Options that take inputs and targets together.
PAIRS = {"train", "data"}
PAIR = "Inputs and targets are one argument, a pair: (x, y)."

# For each option of Lamina its names in other frameworks.
ELSEWHERE = {
    "activation": "nonlinearity",
    "affine": "elementwise_affine scale center",
    "axes": "axis dim dims",
    "axis": "dim axes",
    "area": "scale",
    "balance": "alpha",
    "beta1": "betas b1 beta_1",
    "beta2": "betas b2 beta_2",
    "bias": "use_bias",
    "best": "mode",
    "bins": "n_bins num_bins",
    "bias_init": "bias_initializer",
    "bias_regularizer": "bias_regulariser",
    "along": "kernel_size",
    "boundaries": "milestones",
    "causal": "is_causal use_causal_mask",
    "change_tolerance": "tolerance_change",
    "channels": "out_channels filters",
    "class_weights": "weight weights class_weight",
    "classes": "num_classes n_classes",
    "combine": "reduce",
    "correction": "ddof unbiased",
    "count": "num_embeddings input_dim vocab_size k chunks num",
    "counts": "repeats reps",
    "count_padding": "count_include_pad",
    "decay": "alpha rho beta ema_decay",
    "delimiter": "sep separator",
    "deviation": "std stddev",
    "dilation": "dilation_rate",
    "dilations": "dilation",
    "distance": "distance_function",
    "divisor": "divisor_override",
    "dropout": "dropout_rate p",
    "end": "final_div_factor",
    "engine": "device backend",
    "epsilon": "eps layer_norm_eps",
    "every": "step_size",
    "extents": "size output_size",
    "factors": "loss_weights",
    "fraction": "train_size",
    "first": "start_dim",
    "focus": "gamma",
    "factor": "gamma upscale_factor downscale_factor",
    "features": "units out_features hidden_size embed_dim embedding_dim output_dim d_model",
    "final": "eta_min end_learning_rate",
    "gradient_tolerance": "tolerance_grad",
    "groups": "num_groups",
    "growth": "T_mult t_mul",
    "head_features": "head_dim key_dim",
    "heads": "num_heads nhead",
    "hidden": "dim_feedforward intermediate_size",
    "history": "history_size m",
    "high": "max_val max a_max maxval upper",
    "ignore_index": "ignore_class",
    "indices": "index",
    "input": "input_shape shape in_channels in_features input_dim input_size",
    "inputs": "input_shape in_channels in_features input_dim input_size",
    "k": "top_k n",
    "keepdims": "keepdim keep_dims",
    "key_heads": "num_key_value_heads num_kv_heads",
    "last": "end_dim",
    "layers": "num_layers n_layers",
    "least_change": "min_delta",
    "least_rate": "min_lr",
    "logits": "from_logits",
    "limit": "max_norm clip_value",
    "low": "min_val min a_min lower minval",
    "mode": "fill_mode interpolation",
    "most": "max_shift",
    "micro_batch": "microbatch_size",
    "padding": "padding_idx padding_mode",
    "offset": "diagonal k",
    "order": "p ord",
    "positive_weight": "pos_weight",
    "power": "p",
    "probability": "p rate",
    "progress": "verbose",
    "projection": "proj_size",
    "quantiles": "quantile q tau",
    "rate": "lr learning_rate initial_learning_rate base_lr max_lr",
    "rate_decay": "lr_decay",
    "restore_best": "restore_best_weights",
    "returns": "return_sequences return_state need_weights return_attention_scores return_indices",
    "rates": "values",
    "rise": "pct_start",
    "rotary": "rope_theta",
    "running": "track_running_stats",
    "scale": "scale_factor",
    "schedules": "schedulers",
    "right": "other b",
    "seed": "random_state random_seed",
    "shape": "dims size target_shape",
    "slope": "negative_slope alpha init a",
    "size": "output_size",
    "shifts": "shift",
    "smoothing": "smooth",
    "squared": "squared_pred",
    "start": "div_factor",
    "steps": (
        "T_max T_0 total_iters total_steps decay_steps first_decay_steps warmup_steps step_size_up"
    ),
    "stride": "strides",
    "strides": "stride",
    "strength": "l1 l2 weight_decay",
    "threshold": "lambd",
    "train": "data dataset",
    "unit_diagonal": "unitriangular",
    "validation": "validation_data",
    "values": "src updates",
    "value": "val fill fill_value",
    "vocabulary": "vocab_size",
    "weights": "sample_weight sample_weights",
    "weight_init": "kernel_initializer",
    "weight_regularizer": "kernel_regularizer",
    "widths": "hidden hidden_sizes hidden_layers pad pad_width padding cropping",
    "window": "kernel_size pool_size kernel",
    "x": "input tensor a",
}


def _is_layer(called: Named, _: Sequence[str]) -> bool:
    return hasattr(called.owner, "forward")


def _trains(_: Named, accepted: Sequence[str]) -> bool:
    return "optimizer" in accepted


# Options of other frameworks for which Lamina has something else: their names, a test of the
# callable and its options for which the advice is right, and the advice.
INSTEAD: tuple[tuple[str, Callable[[Named, Sequence[str]], bool], str], ...] = (
    (
        "activation",
        lambda called, _: "Linear" in called.name or called.name.startswith("Conv"),
        "An activation is a separate layer, lm.ReLU() for example, after this one.",
    ),
    (
        "in_features in_channels input_size input_dim num_features",
        _is_layer,
        "The input's size is inferred when the layer is applied: leave it out.",
    ),
    (
        "shape",
        lambda called, _: called.name == "Input",
        "Dimensions are positional, without the batch: lm.Input(1, 28, 28).",
    ),
    (
        "num_classes",
        lambda called, _: called.name == "one_hot",
        "Here it is called depth.",
    ),
    (
        "factor",
        lambda called, _: called.name == "RandomRotation",
        "Here it is degrees, the greatest angle in both directions: 360 * factor.",
    ),
    ("batch_first", _is_layer, "The batch always comes first: leave it out."),
    ("kdim vdim", _is_layer, "The features of keys and values are inferred: leave them out."),
    (
        "key_padding_mask attn_mask src_mask tgt_mask",
        _is_layer,
        "Masks are tensors after the sequences: layer(x, mask).",
    ),
    (
        "normalized_shape",
        lambda called, _: called.name == "LayerNorm",
        "LayerNorm normalises axes, the last one by default.",
    ),
    (
        "from_logits",
        lambda called, _: called.name == "BCE",
        "lm.BCE takes probabilities, lm.BCEWithLogits raw scores (from_logits=True).",
    ),
    (
        "from_logits",
        lambda called, _: hasattr(called.owner, "elements"),
        "It takes raw scores, as with from_logits=True: leave it out, and a Softmax at the end.",
    ),
    (
        "inputs outputs",
        lambda called, _: called.name == "Model",
        "Make the network first: lm.Model(lm.Network(inputs, outputs)).",
    ),
    (
        "validation_split",
        lambda _, accepted: "validation" in accepted,
        "Split the data set first: train, validation = lm.data.Dataset(x, y).split(0.9).",
    ),
    (
        "sample_weight sample_weights weights",
        lambda _, accepted: not PAIRS.isdisjoint(accepted),
        "The weights of the examples are given with them: (x, y, weights).",
    ),
    (
        "loss_weights weighted_metrics",
        lambda _, accepted: "metrics" in accepted,
        "Losses have factors: lm.ByOutput(losses, factors=...). Metrics use the examples' weights.",
    ),
    (
        "lr learning_rate",
        _trains,
        "It is an option of the optimizer, and the first one: optimizer=lm.Adam(1e-3).",
    ),
    (
        "max_grad_norm grad_clip clip_norm clipnorm global_clipnorm gradient_clip_val",
        _trains,
        "Here it is clip=lm.ClipGlobalNorm(1.0).",
    ),
    (
        "early_stopping patience",
        _trains,
        "It is a callback: callbacks=[lm.callbacks.EarlyStopping()].",
    ),
    (
        "steps_per_epoch",
        _trains,
        "It is an option of a stream: lm.data.Stream(batches, steps_per_epoch=100).",
    ),
    (
        "accumulate accumulate_grad_batches gradient_accumulation_steps",
        lambda _, accepted: "micro_batch" in accepted,
        "Here it is micro_batch, a number of examples: micro_batch=batch_size // 4 for 4 parts.",
    ),
    (
        "adjustable_rate",
        lambda _, accepted: "class_weights" in accepted,
        "Leave it out: the rate of every training can be set.",
    ),
    (
        "test_size",
        lambda _, accepted: "fraction" in accepted,
        "The fraction is that of the first part: split(0.8) for test_size=0.2.",
    ),
    (
        "strict",
        lambda called, _: called.name == "from_torch",
        "Every parameter of the network needs a value; skip=[...] names keys to leave out.",
    ),
    ("x y targets labels", lambda _, accepted: not PAIRS.isdisjoint(accepted), PAIR),
)

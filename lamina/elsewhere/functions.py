"""Names of functions of torch, torch.nn.functional, numpy and keras.ops, and of the top level."""

from __future__ import annotations

OPS: dict[str, str] = {
    "cat concatenate": "lm.ops.concat(tensors, axis)",
    "mm bmm": "lm.ops.matmul(x, y)",
    "addmm baddbmm": "It is lm.ops.matmul(x, y) + z.",
    "linear": "It is lm.ops.matmul(x, y) plus a bias; the layer is lm.Linear.",
    "conv1d conv2d conv3d": "lm.ops.conv(x, weight)",
    "conv_transpose1d conv_transpose2d conv_transpose3d": "lm.ops.conv_transpose(x, weight)",
    "max_pool1d max_pool2d max_pool3d max_pool": "lm.ops.window_max; the layer is lm.MaxPool2d.",
    "avg_pool1d avg_pool2d avg_pool3d average_pool": (
        "lm.ops.window_sum adds up windows; the layer is lm.AvgPool2d."
    ),
    "permute": "lm.ops.transpose(x, axes)",
    "movedim": "lm.ops.moveaxis(x, source, destination)",
    "view flatten ravel": "lm.ops.reshape(x, shape)",
    "unsqueeze": "lm.ops.expand_dims(x, axis)",
    "expand expand_as": "lm.ops.broadcast_to(x, shape)",
    "clamp clip_by_value": "lm.ops.clip(x, low, high)",
    "var": "lm.ops.variance(x)",
    "square": "It is x * x.",
    "absolute fabs": "lm.ops.abs(x)",
    "amax": "lm.ops.max(x)",
    "amin": "lm.ops.min(x)",
    "subtract": "lm.ops.sub(x, y)",
    "multiply": "lm.ops.mul(x, y)",
    "divide true_divide": "lm.ops.div(x, y)",
    "power": "lm.ops.pow(x, y)",
    "negative": "lm.ops.neg(x)",
    "topk": "lm.ops.top_k(x, count)",
    "bitwise_left_shift": "lm.ops.left_shift(x, count)",
    "bitwise_right_shift": "lm.ops.right_shift(x, count)",
    "gammaln": "lm.ops.lgamma(x)",
    "psi": "lm.ops.digamma(x)",
    "histc histogram": "lm.ops.bincount(x, size) counts whole numbers.",
    "fft2 rfft2 fftn": "lm.ops.fft(x) transforms the last axis; move others there one by one.",
    "arccos": "lm.ops.acos(x)",
    "arcsin": "lm.ops.asin(x)",
    "arctan": "lm.ops.atan(x)",
    "arctan2": "lm.ops.atan2(y, x)",
    "fix": "lm.ops.trunc(x)",
    "rint": "lm.ops.round(x)",
    "fmax": "lm.ops.maximum(x, y)",
    "fmin": "lm.ops.minimum(x, y)",
    "inv": "lm.ops.inverse(x)",
    "qr svd svdvals eig eigh eigvals eigvalsh pinv lstsq": (
        "There is no such factorisation; lm.ops has cholesky, inverse, det and solve."
    ),
    "fftshift": "lm.ops.roll(x, n // 2, axis)",
    "index_add": 'lm.ops.scatter(x, indices, values, axis, combine="add")',
    "diff": "It is the difference of slices: x[:, 1:] - x[:, :-1].",
    "narrow": "It is a slice: x[:, start:stop].",
    "masked_select nonzero unique": (
        "There is no such function, as the shape would depend on the values; lm.ops.where chooses "
        "between values."
    ),
    "eq": "lm.ops.equal(x, y)",
    "ne": "lm.ops.not_equal(x, y)",
    "gt": "lm.ops.greater(x, y)",
    "ge": "lm.ops.greater_equal(x, y)",
    "lt": "lm.ops.less(x, y)",
    "le": "lm.ops.less_equal(x, y)",
    "astype to type": "lm.ops.cast(x, dtype)",
    "zeros": "lm.ops.full(shape, 0.0)",
    "ones": "lm.ops.full(shape, 1.0)",
    "tensor as_tensor array asarray convert_to_tensor": "lm.ops.constant(value)",
    "index_select embedding embedding_lookup": "lm.ops.take(x, indices)",
    "unbind": "lm.ops.unstack(x)",
    "detach no_grad": "lm.ops.stop_gradient(x)",
    "rand": "lm.ops.uniform; in a layer, scope.uniform.",
    "randn": "lm.ops.normal; in a layer, scope.normal.",
    "scaled_dot_product_attention": "lm.ops.attention(queries, keys, values)",
    "scan while_loop fori_loop": "lm.ops.recurrence runs a step along an axis.",
    "relu6": "It is lm.ops.clip(x, 0.0, 6.0); the layer is lm.ReLU6().",
    "hardtanh_": "lm.ops.hardtanh(x, low, high)",
    "dropout": "Random zeros are a layer: lm.Dropout(probability).",
    "layer_norm batch_norm group_norm instance_norm": (
        "Normalisations are layers: lm.LayerNorm(), lm.BatchNorm(), lm.GroupNorm(groups)."
    ),
    "interpolate": "lm.Upsample(scale=2) is the layer.",
    "silu swish": "It is x * lm.ops.sigmoid(x); the layer is lm.SiLU().",
    "leaky_relu elu selu": "Such an activation is a layer: lm.LeakyReLU(), lm.ELU(), lm.SELU().",
    "cross_entropy mse_loss l1_loss nll_loss binary_cross_entropy": (
        "Losses are records: lm.CrossEntropy(), lm.MSE(), lm.MAE(), lm.NLL(), lm.BCE()."
    ),
    "grad": "lm.gradients(y, [x])",
}

# Functions that NumPy and PyTorch have at the top level, with Lamina's names.
IN_OPS = (
    "abs exp log sqrt sin cos tanh sigmoid relu softmax log_softmax matmul einsum sum mean max min "
    "prod argmax argmin where stack split reshape transpose squeeze clip maximum minimum pad cumsum"
)

# The top level, besides layers, losses, optimizers and metrics.
TOP: dict[str, str] = {
    "nn": "Layers and losses are at the top level: lm.Linear, lm.Conv2d, lm.CrossEntropy.",
    "functional F": "Functions of tensors are in lm.ops.",
    "optim optimizers": "Optimizers are at the top level: lm.SGD, lm.Adam, lm.AdamW.",
    "losses": "Losses are at the top level: lm.MSE, lm.CrossEntropy.",
    "metrics": "Metrics are at the top level: lm.Accuracy, lm.TopK.",
    "models applications": "Networks from papers are in lm.networks: lm.networks.resnet(18).",
    "activations": "Each activation is a layer: lm.ReLU(), lm.Tanh(), lm.GELU().",
    "initializers": "They are in lm.init: lm.init.KaimingNormal(), lm.init.Zeros().",
    "regularizers": "They are at the top level: lm.L1(strength), lm.L2(strength).",
    "lr_scheduler schedulers": "They are in lm.schedules: lm.schedules.Cosine(rate, steps).",
    "datasets": (
        "lm.data.mnist() and lm.data.digits() are data sets; lm.data.load(path) reads files."
    ),
    "utils": "There is no such module; see lm.data, lm.ops and lm.networks.",
    "tensor array asarray as_tensor from_numpy FloatTensor Variable": (
        "Data are NumPy arrays, which fit, predict and training.step take as they are; a constant "
        "in a network is lm.ops.constant(value)."
    ),
    "zeros ones randn rand arange linspace full": (
        "Data are NumPy arrays: numpy.zeros, numpy.random; in a network there are lm.ops.full and "
        "lm.ops.arange."
    ),
    "float32 float64 float16 bfloat16 int64 int32 uint8 double half": (
        'An element type is given by its name: lm.Model(net, dtype="float64"), '
        'lm.Input(dtype="int64").'
    ),
    "DataLoader TensorDataset": (
        "lm.data.Dataset(inputs, targets); fit takes the batch size and shuffles."
    ),
    "Dataset": "lm.data.Dataset(inputs, targets)",
    "Trainer LightningModule": "lm.Model(net), whose fit(...) trains",
    "KFold StratifiedKFold": (
        "scikit-learn's gives numbers of rows; lm.data.Dataset(x, y).take(rows) are a fold."
    ),
    "StandardScaler": "lm.data.from_frame(frame, target, standardise=True)",
    "random_split train_test_split": "lm.data.Dataset(inputs, targets).split(0.9)",
    "load_model load_weights": "lm.load(path)",
    "save save_model": "model.save(path)",
    "no_grad inference_mode enable_grad set_grad_enabled": (
        "Not needed: model.predict computes no gradients."
    ),
    "grad autograd GradientTape value_and_grad": (
        "lm.gradients(y, [x]) derives gradients; fit and training do it themselves."
    ),
    "manual_seed set_seed set_random_seed seed seed_everything": "lm.Model(net, seed=0)",
    "device cuda backends": (
        'The engine is chosen by its name: lm.Model(net, engine="cuda"); lm.devices() lists them.'
    ),
    "jit vmap export script trace": (
        "Every network is compiled; lm.compile(inputs, outputs) compiles a function of tensors."
    ),
    "summary": "print(net) shows layers, shapes and parameters.",
    "GradScaler autocast amp mixed_precision": 'lm.Model(net, dtype="mixed")',
    "to_categorical one_hot": (
        "Not needed: lm.CrossEntropy() takes class numbers; lm.OneHot(classes) is the layer."
    ),
    "train fit": "model.fit(train, loss=..., optimizer=...)",
    "MLPClassifier MLPRegressor": (
        "lm.networks.mlp((64, 32)) is the network; lm.Model(net) trains it."
    ),
    "Optimizer": "lm.training.optimizers.Optimizer is the base of optimizers.",
    "Loss": "lm.training.losses.Loss is the base of losses.",
    "Metric": "lm.training.metrics.Metric is the base of metrics.",
}

DATA: dict[str, str] = {
    "DataLoader TensorDataset": (
        "lm.data.Dataset(inputs, targets); fit takes the batch size and shuffles."
    ),
    "random_split train_test_split Subset": "It is a method: dataset.split(0.9).",
    "MNIST load_mnist": "lm.data.mnist(folder)",
    "load_digits": "lm.data.digits()",
    "load_iris": ("lm.data.Dataset(*sklearn.datasets.load_iris(return_X_y=True), dtype='float32')"),
    "read_csv load_csv from_csv loadtxt": "lm.data.load(path)",
    "ImageFolder image_dataset_from_directory": "lm.data.load(path), with a folder of images.",
}

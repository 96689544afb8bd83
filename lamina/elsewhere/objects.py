"""Names of methods and attributes of models, trainings, data sets and other objects."""

from __future__ import annotations

_NO_MODES = "There are no modes: fit and training train, predict and evaluate infer."
_ENGINE = 'The engine is chosen when the model is made: lm.Model(net, engine="cuda").'
_PARAMETERS_ELSEWHERE = (
    "A layer holds no numbers: model.parameters() gives them, by names such as '1.weight'."
)

MODEL: dict[str, str] = {
    "summary": "print(model.network) shows layers, shapes and parameters.",
    "compile": "Loss, optimizer and metrics are arguments of model.fit(train, loss=..., ...).",
    "eval train requires_grad_": _NO_MODES,
    "to cuda cpu": _ENGINE,
    "half double float bfloat16": (
        'The precision is chosen when the model is made: lm.Model(net, dtype="float64").'
    ),
    "state_dict get_weights weights named_parameters variables trainable_weights "
    "trainable_variables coefs_": "model.parameters()",
    "buffers named_buffers non_trainable_weights non_trainable_variables": "model.states()",
    "load_state_dict": (
        "lm.from_torch(net, state_dict) makes a model with PyTorch's weights; "
        "model.set_parameters(values) takes arrays by the names of model.parameters()."
    ),
    "set_weights": "model.set_parameters(values)",
    "load_weights": "model.load_parameters(path)",
    "load": "lm.load(path)",
    "save_weights to_json export": "model.save(path)",
    "layers modules named_modules children get_layer": (
        "print(model.network) shows the layers; model.parameters() has their names."
    ),
    "count_params": "model.network.parameter_count",
    "forward call apply": "model.predict(inputs)",
    "predict_proba decision_function predict_log_proba predict_on_batch": (
        "model.predict(inputs) gives the outputs of the network. For probabilities of a network "
        "that was trained on scores: "
        "model.part(lm.Network(net.inputs, lm.Softmax()(net.outputs[0]))).predict(inputs)."
    ),
    "predict_classes": "model.predict(inputs).argmax(axis=1)",
    "score test_on_batch": "model.evaluate(data, loss=..., metrics=[lm.Accuracy()])",
    "partial_fit train_on_batch train_step fit_generator": (
        "with model.training(loss=..., optimizer=...) as training: training.step(x, y)"
    ),
    "evaluate_generator predict_generator": "model.predict and model.evaluate take arrays.",
    "zero_grad": "Not needed: each training.step computes its own gradients.",
    "freeze trainable": "It is an option of fit and training: model.fit(..., frozen=[...]).",
    "optimizer loss metrics": "They belong to a call: model.fit(train, loss=..., optimizer=...).",
    "history": "model.fit returns the history.",
    "get_params set_params": (
        "A model has no options to change; print(model.network) shows the layers."
    ),
    "input_shape output_shape inputs outputs": "They are those of model.network.",
}

NETWORK: dict[str, str] = {
    "summary": "print(net) shows layers, shapes and parameters.",
    "compile fit predict evaluate train eval": (
        "A network holds no numbers: model = lm.Model(net), then model.fit(...) and "
        "model.predict(...)."
    ),
    "load_state_dict": (
        "A network holds no numbers: lm.from_torch(net, state_dict) makes a model with PyTorch's "
        "weights."
    ),
    "state_dict parameters get_weights set_weights": (
        "A network holds no numbers: model = lm.Model(net), then model.parameters()."
    ),
    "to cuda cpu": _ENGINE,
    "call": "A network is applied like a layer, net(x); lm.Model(net) computes numbers.",
    "layers modules children": "print(net) shows the layers.",
    "count_params": "net.parameter_count",
    "add append": (
        "A network does not change: give all layers to lm.Sequential(input, ...) at once."
    ),
    "save": "model = lm.Model(net), then model.save(path).",
}

TRAINING: dict[str, str] = {
    "zero_grad": "Not needed: each training.step computes its own gradients.",
    "backward": "Not needed: training.step(x, y) computes loss and gradients and updates.",
    "train eval": _NO_MODES,
    "fit": "training.run(dataset, steps=...) runs many steps; model.fit whole epochs.",
    "train_step train_on_batch partial_fit": "training.step(x, y)",
    "parameters state_dict": "model.parameters(): a training changes its model's parameters.",
}

LAYER: dict[str, str] = {
    "weight bias_ weights kernel parameters state_dict get_weights set_weights named_parameters "
    "load_state_dict trainable_weights": _PARAMETERS_ELSEWHERE,
    "trainable requires_grad_": (
        "It is an option of fit and training: model.fit(..., frozen=[...])."
    ),
    "train eval": _NO_MODES,
    "to cuda cpu": _ENGINE,
    "call": "A layer is applied like a function: layer(x).",
    "build": "Not needed: a layer's shapes are checked when it is applied.",
    "input_shape output_shape": "A layer has no shapes; the tensors that it is applied to have.",
}

OPTIMIZER: dict[str, str] = {
    "step zero_grad minimize apply_gradients apply": (
        "An optimizer is a record; training.step(x, y) applies it."
    ),
    "param_groups": "lm.training.optimizers.ByPath has an optimizer for each group of parameters.",
    "learning_rate lr": "optimizer.rate",
    "state_dict load_state_dict get_config": "fit(checkpoint=...) keeps the optimizer's state.",
}

LOSS: dict[str, str] = {
    "backward": "Not needed: training.step(x, y) computes loss and gradients and updates.",
    "item numpy": "A loss is a record; training.step(x, y) returns its value.",
    "forward call": "A loss is applied like a function: loss(prediction, target).",
}

DEFERRED_LOSS: dict[str, str] = {
    "backward": "Not needed: training.step has computed the gradients and the update.",
    "item numpy detach cpu": "float(loss) waits for the number.",
}

METRIC: dict[str, str] = {
    "update_state update reset_state reset compute": (
        "Metrics are graphs: model.evaluate(data, loss=..., metrics=[...]) computes them."
    ),
}

SCHEDULE: dict[str, str] = {
    "step": "Not needed: the rate follows the training step by itself.",
    "get_last_lr get_lr": "The method at(step) gives the rate of a training step.",
}

HISTORY: dict[str, str] = {
    "history": "history.values",
    "epoch epochs": "len(history) is the number of epochs.",
    "params model": "There is no such attribute; history.values has loss and metrics.",
    "items": "history.values has the names and values.",
    "loss loss_curve_": 'history["loss"]',
    "accuracy acc": 'history["accuracy"]',
    "val_loss validation_loss": 'history["validation_loss"]',
    "val_accuracy val_acc validation_accuracy": 'history["validation_accuracy"]',
    "to_pandas": "pandas.DataFrame(history.values)",
}

DATASET: dict[str, str] = {
    "shape": (
        "dataset.input_shapes and dataset.target_shapes are those of one example; len(dataset) "
        "counts."
    ),
    "X x data images": "dataset.inputs",
    "y labels target": "dataset.targets",
    "batch": "fit and training take the batch size.",
    "shuffle": "fit shuffles; dataset.order gives the order of an epoch.",
    "map": "Change the arrays before you make the data set.",
    "prefetch cache repeat": "Not needed: fit copies the data to the device, or streams it.",
    "skip": "dataset.subset(start)",
    "random_split train_test_split": "dataset.split(0.9)",
    "iloc loc": "dataset.take(indices)",
}

_NO_NUMBERS = "A tensor is symbolic and holds no numbers; model.predict(inputs) computes them."

TENSOR: dict[str, str] = {
    "item numpy tolist data cpu eval": _NO_NUMBERS,
    "backward requires_grad grad requires_grad_ retain_grad": "lm.gradients(y, [x])",
    "detach": "lm.ops.stop_gradient(x)",
    "cuda device": _ENGINE,
    "size": "x.shape has the dimensions; lm.ops.element_count(x) counts the elements.",
    "numel": "lm.ops.element_count(x)",
    "dim": "x.rank is the number of axes.",
    "view ravel": "x.reshape(shape)",
    "flatten": "The layer is lm.Flatten(); x.reshape(shape) takes any shape.",
    "permute t": (
        "x.transpose(axes), with all axes; x.mT exchanges the last two, x.T reverses all."
    ),
    "unsqueeze": "x.expand_dims(axis)",
    "expand": "lm.ops.broadcast_to(x, shape)",
    "repeat": "PyTorch's is lm.ops.tile(x, counts), NumPy's is lm.ops.repeat(x, counts).",
    "clamp": "x.clip(low, high)",
    "to type float double half int long bool": "x.astype(dtype)",
    "amax": "x.max(axes)",
    "amin": "x.min(axes)",
    "pow": "x ** y",
    "mm bmm": "x.matmul(y), or x @ y.",
    "unbind": "lm.ops.unstack(x)",
    "contiguous clone copy": "Not needed: tensors never change.",
    "add_ mul_ sub_ div_ zero_ fill_ copy_ clamp_ relu_": (
        "Tensors never change; x = x + 1 makes another."
    ),
}

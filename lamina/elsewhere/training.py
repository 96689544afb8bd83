"""Names of losses, optimizers, metrics, schedules, initial values and of what trains a network."""

from __future__ import annotations

LOSSES: dict[str, str] = {
    "MSELoss MeanSquaredErrorLoss": "lm.MSE()",
    "L1Loss": "lm.MAE()",
    "HuberLoss": "lm.Huber()",
    "SmoothL1Loss": "lm.SmoothL1()",
    "CrossEntropyLoss CategoricalCrossentropy SparseCategoricalCrossentropy": (
        "lm.CrossEntropy() takes raw scores, and class numbers or shares as targets."
    ),
    "LinearCrossEntropyLoss": (
        "Use two steps: lm.Linear(classes) as the last layer, lm.CrossEntropy() as the loss."
    ),
    "NLLLoss NLLLoss2d": "lm.NLL()",
    "BCELoss": "lm.BCE()",
    "BCEWithLogitsLoss": "lm.BCEWithLogits()",
    "BinaryCrossentropy": (
        "lm.BCE() takes probabilities, lm.BCEWithLogits() takes raw scores (from_logits=True)."
    ),
    "KLDivLoss KLDivergenceLoss": "lm.KLDivergence()",
    "HingeEmbeddingLoss": "lm.HingeEmbedding()",
    "MultiMarginLoss": "lm.MultiMargin()",
    "MultiLabelMarginLoss": "lm.MultiLabelMargin()",
    "SoftMarginLoss": "lm.SoftMargin()",
    "MultiLabelSoftMarginLoss": "lm.MultiLabelSoftMargin()",
    "TripletMarginLoss": "lm.Triplet()",
    "TripletMarginWithDistanceLoss": "lm.TripletWithDistance(distance)",
    "MarginRankingLoss": "lm.MarginRanking()",
    "CosineEmbeddingLoss": "lm.CosineEmbedding()",
    "PoissonNLLLoss": "lm.PoissonNLL()",
    "Poisson": "lm.PoissonNLL(log_input=False)",
    "GaussianNLLLoss": "lm.GaussianNLL()",
    "CTCLoss": "lm.CTC() takes logarithms of probabilities, [batch, time, classes].",
    "CategoricalFocalCrossentropy": (
        "lm.Focal() takes raw scores, and class numbers as targets; it is without Keras' "
        "factor alpha, which is 0.25."
    ),
    "BinaryFocalCrossentropy": (
        "lm.BinaryFocal(balance=None) takes raw scores (from_logits=True)."
    ),
    "MeanAbsolutePercentageError": "lm.MAPE()",
    "MeanSquaredLogarithmicError": "lm.MSLE()",
    "AdaptiveLogSoftmaxWithLoss Tversky Circle CategoricalGeneralizedCrossEntropy": (
        "There is no such loss; a loss may be any function of two tensors, made of lm.ops."
    ),
}

OPTIMIZERS: dict[str, str] = {
    "RMSprop": "lm.RMSProp(rate)",
    "Nadam": "lm.NAdam(rate)",
    "Lamb": "lm.LAMB(rate)",
    "ASGD": "lm.SWA(lm.SGD(rate), start=steps) averages the parameters of any optimizer.",
    "RAdam Adafactor SparseAdam": "There is no such optimizer; lm.Adam(rate) comes nearest.",
    "Muon Ftrl": "There is no such optimizer; lm.AdamW(rate) comes nearest.",
    "LossScaleOptimizer": 'Not needed: lm.Model(net, dtype="mixed") scales the loss itself.',
    "AveragedModel": "lm.SWA(optimizer, start=steps)",
}

METRICS: dict[str, str] = {
    "BinaryCrossentropyMetric CategoricalAccuracy SparseCategoricalAccuracy": "lm.Accuracy()",
    "TopKCategoricalAccuracy SparseTopKCategoricalAccuracy": "lm.TopK(k)",
    "F1Score FBetaScore": "lm.F1()",
    "R2Score": "lm.R2()",
    "ROCAUC ROC_AUC roc_auc_score": "lm.AUROC()",
    "AUC": 'lm.AUROC(), or lm.AveragePrecision() for curve="PR"',
    "IoU BinaryIoU OneHotIoU OneHotMeanIoU": "lm.MeanIoU()",
    "LogCoshError": "Losses are metrics too: metrics=[lm.LogCosh()].",
    "Mean MeanMetricWrapper": "A function is a metric: metrics=[function].",
    "PrecisionAtRecall RecallAtPrecision SensitivityAtSpecificity SpecificityAtSensitivity "
    "TruePositives TrueNegatives FalsePositives FalseNegatives ConcordanceCorrelation Sum": (
        "There is no such metric; lm.ConfusionMatrix() counts, and model.predict gives the scores."
    ),
}

SCHEDULES: dict[str, str] = {
    "StepLR": "lm.schedules.StepDecay(rate, every)",
    "MultiStepLR PiecewiseConstantDecay": "lm.schedules.PiecewiseConstant(boundaries, rates)",
    "ExponentialLR ExponentialDecay": "lm.schedules.Exponential(rate, factor=0.9)",
    "CosineAnnealingLR CosineDecay": "lm.schedules.Cosine(rate, steps)",
    "LinearLR": "lm.schedules.Linear(rate, steps)",
    "PolynomialLR PolynomialDecay": "lm.schedules.Polynomial(rate, steps)",
    "ConstantLR": "lm.schedules.Constant(rate)",
    "SequentialLR": "lm.schedules.Chain(boundaries, schedules)",
    "CosineAnnealingWarmRestarts CosineDecayRestarts": "lm.schedules.CosineRestarts(rate, steps)",
    "CyclicLR": "lm.schedules.Cyclic(rate, steps)",
    "OneCycleLR": "lm.schedules.OneCycle(rate, steps)",
    "ChainedScheduler InverseTimeDecay": (
        "There is no such schedule; lm.schedules.Cosine(rate, steps) comes nearest. A schedule may "
        "be any function of the step, made of lm.ops."
    ),
    "LambdaLR MultiplicativeLR LRScheduler LearningRateSchedule": (
        "A schedule is any function of the step, made of lm.ops: "
        "lm.SGD(lambda step: 0.1 / (1.0 + step))."
    ),
    "ReduceLROnPlateau": "It is a callback here: lm.callbacks.ReduceOnPlateau().",
}

INITIALISERS: dict[str, str] = {
    "kaiming_uniform_ kaiming_uniform HeUniform he_uniform": "lm.init.KaimingUniform()",
    "kaiming_normal_ kaiming_normal HeNormal he_normal": "lm.init.KaimingNormal()",
    "xavier_uniform_ xavier_uniform GlorotUniform glorot_uniform": "lm.init.XavierUniform()",
    "xavier_normal_ xavier_normal GlorotNormal glorot_normal": "lm.init.XavierNormal()",
    "orthogonal_ OrthogonalInitializer": "lm.init.Orthogonal()",
    "uniform_ RandomUniform": "lm.init.Uniform(low, high)",
    "normal_ RandomNormal": "lm.init.Normal(deviation=0.01)",
    "trunc_normal_ TruncatedNormal": (
        "There is no such initialiser; lm.init.Normal(deviation=0.01) comes nearest."
    ),
    "constant_": "lm.init.Constant(value)",
    "zeros_": "lm.init.Zeros()",
    "ones_ Ones": "lm.init.Constant(1.0)",
    "LecunNormal LecunUniform VarianceScaling": (
        "There is no such initialiser; lm.init.XavierNormal() comes nearest."
    ),
    "Initializer": "An initialiser is any function (shape, seed, stream) that returns an array.",
    "eye_ dirac_ sparse_ Identity IdentityInitializer STFT": (
        "There is no such initialiser; it may be a function (shape, seed, stream) that returns an "
        "array."
    ),
}

REGULARISERS: dict[str, str] = {
    "L1L2 l1_l2": "There is no such regulariser; it may be a function, made of lm.ops.",
    "OrthogonalRegularizer": "There is no such regulariser; lm.L2(strength) comes nearest.",
    "l1": "lm.L1(strength)",
    "l2": "lm.L2(strength), which is strength / 2 times the sum of squares: lm.L2(2 * l2).",
}

CLIPPING: dict[str, str] = {
    "clip_grad_norm_": "It is an option of fit and training: clip=lm.ClipGlobalNorm(limit).",
    "clip_grad_value_": "It is an option of fit and training: clip=lm.ClipValue(limit).",
}

# Callbacks that have the same name here.
SAME_CALLBACKS: dict[str, str] = {
    "EarlyStopping": "lm.callbacks.EarlyStopping()",
    "TensorBoard": "lm.callbacks.TensorBoard(folder)",
}

CALLBACKS: dict[str, str] = {
    "ModelCheckpoint": (
        "lm.callbacks.SaveModels(folder) keeps the best; model.fit(..., checkpoint=path) resumes."
    ),
    "CSVLogger": "lm.callbacks.CSVLog(path)",
    "ProgbarLogger": "lm.callbacks.PrintEpochs()",
    "LearningRateScheduler": (
        "A schedule is the rate of an optimizer: lm.SGD(lm.schedules.Cosine(rate, steps))."
    ),
    "ReduceLROnPlateau": "lm.callbacks.ReduceOnPlateau()",
    "TerminateOnNaN": (
        "Not needed: a loss that is not finite ends fit with an error, and restores the model."
    ),
    "BackupAndRestore": "It is an option of fit: model.fit(..., checkpoint=path, resume=True).",
    "LearningRateMonitor": 'It is an option of fit: model.fit(..., record=["rate"]).',
    "LambdaCallback": "A callback of fit may be a function of the history.",
    "History": "model.fit returns the history.",
}

"""The public names of PyTorch and Keras 3, and what names of theirs are called here."""

from lamina.foreign import spellings_by_owner

# By the module or class that lacks the names.
TABLES = {
    where: {name: found[0] for name, found in names.items()}
    for where, names in spellings_by_owner().items()
    if where.partition(".")[0] == "lamina" or (where[0].isupper() and where.isidentifier())
}

TORCH_MODULES = """
AdaptiveAvgPool1d AdaptiveAvgPool2d AdaptiveAvgPool3d AdaptiveLogSoftmaxWithLoss AdaptiveMaxPool1d
AdaptiveMaxPool2d AdaptiveMaxPool3d AlphaDropout AvgPool1d AvgPool2d AvgPool3d BCELoss
BCEWithLogitsLoss BatchNorm1d BatchNorm2d BatchNorm3d Bilinear CELU CTCLoss ChannelShuffle
CircularPad1d CircularPad2d CircularPad3d ConstantPad1d ConstantPad2d ConstantPad3d Container
Conv1d Conv2d Conv3d ConvTranspose1d ConvTranspose2d ConvTranspose3d CosineEmbeddingLoss
CosineSimilarity CrossEntropyLoss CrossMapLRN2d DataParallel Dropout Dropout1d Dropout2d Dropout3d
ELU Embedding EmbeddingBag FeatureAlphaDropout Flatten Fold FractionalMaxPool2d
FractionalMaxPool3d GELU GLU GRU GRUCell GaussianNLLLoss GroupNorm Hardshrink Hardsigmoid
Hardswish Hardtanh HingeEmbeddingLoss HuberLoss Identity InstanceNorm1d InstanceNorm2d
InstanceNorm3d KLDivLoss L1Loss LPPool1d LPPool2d LPPool3d LSTM LSTMCell LayerNorm LazyBatchNorm1d
LazyBatchNorm2d LazyBatchNorm3d LazyConv1d LazyConv2d LazyConv3d LazyConvTranspose1d
LazyConvTranspose2d LazyConvTranspose3d LazyInstanceNorm1d LazyInstanceNorm2d LazyInstanceNorm3d
LazyLinear LeakyReLU Linear LinearCrossEntropyLoss LocalResponseNorm LogSigmoid LogSoftmax MSELoss
MarginRankingLoss MaxPool1d MaxPool2d MaxPool3d MaxUnpool1d MaxUnpool2d MaxUnpool3d Mish Module
ModuleDict ModuleList MultiLabelMarginLoss MultiLabelSoftMarginLoss MultiMarginLoss
MultiheadAttention NLLLoss NLLLoss2d PReLU PairwiseDistance ParameterDict ParameterList
PixelShuffle PixelUnshuffle PoissonNLLLoss RMSNorm RNN RNNBase RNNCell RNNCellBase RReLU ReLU
ReLU6 ReflectionPad1d ReflectionPad2d ReflectionPad3d ReplicationPad1d ReplicationPad2d
ReplicationPad3d SELU Sequential SiLU Sigmoid SmoothL1Loss SoftMarginLoss Softmax Softmax2d
Softmin Softplus Softshrink Softsign SyncBatchNorm Tanh Tanhshrink Threshold Transformer
TransformerDecoder TransformerDecoderLayer TransformerEncoder TransformerEncoderLayer
TripletMarginLoss TripletMarginWithDistanceLoss Unflatten Unfold Upsample UpsamplingBilinear2d
UpsamplingNearest2d ZeroPad1d ZeroPad2d ZeroPad3d
"""
TORCH_OPTIMIZERS = """
ASGD Adadelta Adafactor Adagrad Adam AdamW Adamax LBFGS Muon NAdam RAdam RMSprop Rprop SGD
SparseAdam
"""
TORCH_SCHEDULERS = """
ChainedScheduler ConstantLR CosineAnnealingLR CosineAnnealingWarmRestarts CyclicLR ExponentialLR
LRScheduler LambdaLR LinearLR MultiStepLR MultiplicativeLR OneCycleLR PolynomialLR
ReduceLROnPlateau SequentialLR StepLR
"""
TORCH_INITIALISERS = """
constant_ dirac_ eye_ kaiming_normal_ kaiming_uniform_ normal_ ones_ orthogonal_ sparse_
trunc_normal_ uniform_ xavier_normal_ xavier_uniform_ zeros_
"""

# Of Keras 3.
KERAS_LAYERS = """
Activation ActivityRegularization Add AdditiveAttention AlphaDropout Attention AugMix AutoContrast
Average AveragePooling1D AveragePooling2D AveragePooling3D AvgPool1D AvgPool2D AvgPool3D
BatchNormalization Bidirectional CategoryEncoding CenterCrop Concatenate Conv1D Conv1DTranspose
Conv2D Conv2DTranspose Conv3D Conv3DTranspose ConvLSTM1D ConvLSTM2D ConvLSTM3D Convolution1D
Convolution1DTranspose Convolution2D Convolution2DTranspose Convolution3D Convolution3DTranspose
Cropping1D Cropping2D Cropping3D CutMix Dense DepthwiseConv1D DepthwiseConv2D Discretization Dot
Dropout ELU EinsumDense Embedding Equalization Flatten FlaxLayer GRU GRUCell GaussianDropout
GaussianNoise GlobalAveragePooling1D GlobalAveragePooling2D GlobalAveragePooling3D
GlobalAvgPool1D GlobalAvgPool2D GlobalAvgPool3D GlobalMaxPool1D GlobalMaxPool2D GlobalMaxPool3D
GlobalMaxPooling1D GlobalMaxPooling2D GlobalMaxPooling3D GroupNormalization GroupQueryAttention
HashedCrossing Hashing Identity Input InputLayer InputSpec IntegerLookup JaxLayer LSTM LSTMCell
Lambda Layer LayerNormalization LeakyReLU Masking MaxNumBoundingBoxes MaxPool1D MaxPool2D
MaxPool3D MaxPooling1D MaxPooling2D MaxPooling3D Maximum MelSpectrogram Minimum MixUp
MultiHeadAttention Multiply Normalization PReLU Permute Pipeline RMSNormalization RNN RandAugment
RandomBrightness RandomColorDegeneration RandomColorJitter RandomContrast RandomCrop
RandomElasticTransform RandomErasing RandomFlip RandomGaussianBlur RandomGrayscale RandomHue
RandomInvert RandomPerspective RandomPosterization RandomRotation RandomSaturation
RandomSharpness RandomShear RandomTranslation RandomZoom ReLU RepeatVector Rescaling Reshape
Resizing STFTSpectrogram SeparableConv1D SeparableConv2D SeparableConvolution1D
SeparableConvolution2D SimpleRNN SimpleRNNCell Softmax Solarization SpatialDropout1D
SpatialDropout2D SpatialDropout3D SpectralNormalization StackedRNNCells StringLookup Subtract
TFSMLayer TextVectorization TimeDistributed TorchModuleWrapper UnitNormalization UpSampling1D
UpSampling2D UpSampling3D Wrapper ZeroPadding1D ZeroPadding2D ZeroPadding3D
"""
KERAS_LOSSES = """
BinaryCrossentropy BinaryFocalCrossentropy CTC CategoricalCrossentropy
CategoricalFocalCrossentropy CategoricalGeneralizedCrossEntropy CategoricalHinge Circle
CosineSimilarity Dice Hinge Huber KLDivergence LogCosh Loss MeanAbsoluteError
MeanAbsolutePercentageError MeanSquaredError MeanSquaredLogarithmicError Poisson
SparseCategoricalCrossentropy SquaredHinge Tversky
"""
KERAS_OPTIMIZERS = """
Adadelta Adafactor Adagrad Adam AdamW Adamax Ftrl Lamb Lion LossScaleOptimizer Muon Nadam
Optimizer RMSprop SGD
"""
KERAS_METRICS = """
AUC Accuracy BinaryAccuracy BinaryCrossentropy BinaryIoU CategoricalAccuracy
CategoricalCrossentropy CategoricalHinge ConcordanceCorrelation CosineSimilarity F1Score
FBetaScore FalseNegatives FalsePositives Hinge IoU KLDivergence LogCoshError Mean
MeanAbsoluteError MeanAbsolutePercentageError MeanIoU MeanMetricWrapper MeanSquaredError
MeanSquaredLogarithmicError Metric OneHotIoU OneHotMeanIoU PearsonCorrelation Poisson Precision
PrecisionAtRecall R2Score Recall RecallAtPrecision RootMeanSquaredError SensitivityAtSpecificity
SparseCategoricalAccuracy SparseCategoricalCrossentropy SparseTopKCategoricalAccuracy
SpecificityAtSensitivity SquaredHinge Sum TopKCategoricalAccuracy TrueNegatives TruePositives
"""
KERAS_SCHEDULES = """
CosineDecay CosineDecayRestarts ExponentialDecay InverseTimeDecay LearningRateSchedule
PiecewiseConstantDecay PolynomialDecay
"""
KERAS_INITIALISERS = """
Constant GlorotNormal GlorotUniform HeNormal HeUniform Identity IdentityInitializer Initializer
LecunNormal LecunUniform Ones Orthogonal OrthogonalInitializer RandomNormal RandomUniform STFT
TruncatedNormal VarianceScaling Zeros
"""

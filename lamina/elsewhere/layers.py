"""Names of layers in torch.nn and keras.layers; the names before a colon share the text."""

from __future__ import annotations

_WRAPPER = (
    "A list of layers is a Python list; lm.Sequential(input, *layers) runs one after another."
)
_CELL = "The cells are lm.RNNCell(features), lm.LSTMCell(features) and lm.GRUCell(features)."
_IMAGES = (
    "There is no such layer; lm.RandomCrop(size), lm.RandomAffine() and lm.ColourJitter() change "
    "training images."
)
_TEXT = (
    "There are no layers for text or categories; make indices first, and give them to lm.OneHot or"
    " lm.Embedding."
)

# PyTorch's order of widths is that of the last axis first: left, right, top, bottom, front, back.
_WIDTHS = {
    "1d": "((left, right),)",
    "2d": "((top, bottom), (left, right))",
    "3d": "((front, back), (top, bottom), (left, right))",
}


def _padding(name: str, options: str) -> dict[str, str]:
    """The entries of PyTorch's layers that pad 1, 2 and 3 axes, such as ZeroPad2d."""
    order = "The order is that of the axes, and a single number is for all sides"
    return {name + rank: f"{order}: lm.Pad({widths}{options})." for rank, widths in _WIDTHS.items()}


LAYERS: dict[str, str] = {
    # Products and convolutions
    "Dense LazyLinear": "lm.Linear(features)",
    "EinsumDense": (
        "There is no such layer; lm.ops.einsum is the product, and lm.Linear the usual layer."
    ),
    "Conv1D Convolution1D LazyConv1d": "lm.Conv1d(channels, window)",
    "Conv2D Convolution2D LazyConv2d": "lm.Conv2d(channels, window)",
    "Conv3D Convolution3D LazyConv3d": "lm.Conv3d(channels, window)",
    "Conv1DTranspose Convolution1DTranspose LazyConvTranspose1d": (
        "lm.ConvTranspose1d(channels, window)"
    ),
    "Conv2DTranspose Convolution2DTranspose LazyConvTranspose2d": (
        "lm.ConvTranspose2d(channels, window)"
    ),
    "Conv3DTranspose Convolution3DTranspose LazyConvTranspose3d": (
        "lm.ConvTranspose3d(channels, window)"
    ),
    "DepthwiseConv1D": "lm.Conv1d(channels, window, groups=channels)",
    "DepthwiseConv2D": "lm.Conv2d(channels, window, groups=channels)",
    "SeparableConv1D SeparableConvolution1D": (
        "It is two layers here: lm.Conv1d(inputs, window, groups=inputs), lm.Conv1d(channels, 1)."
    ),
    "SeparableConv2D SeparableConvolution2D": (
        "It is two layers here: lm.Conv2d(inputs, window, groups=inputs), lm.Conv2d(channels, 1)."
    ),
    "Fold Unfold": "There is no such layer; lm.Conv2d has the windows inside.",
    "SpectralNormalization": "There is no such layer; lm.L2 as weight_regularizer comes nearest.",
    # Pooling
    "MaxPool1D MaxPooling1D": "lm.MaxPool1d(window)",
    "MaxPool2D MaxPooling2D": "lm.MaxPool2d(window)",
    "MaxPool3D MaxPooling3D": "lm.MaxPool3d(window)",
    "AvgPool1D AveragePooling1D": "lm.AvgPool1d(window)",
    "AvgPool2D AveragePooling2D": "lm.AvgPool2d(window)",
    "AvgPool3D AveragePooling3D": "lm.AvgPool3d(window)",
    "AdaptiveAvgPool1d AdaptiveAvgPool2d AdaptiveAvgPool3d AdaptiveAveragePooling1D "
    "AdaptiveAveragePooling2D AdaptiveAveragePooling3D": "lm.AdaptiveAvgPool(size)",
    "AdaptiveMaxPool1d AdaptiveMaxPool2d AdaptiveMaxPool3d AdaptiveMaxPooling1D "
    "AdaptiveMaxPooling2D AdaptiveMaxPooling3D": "lm.AdaptiveMaxPool(size)",
    "GlobalAvgPool1D GlobalAvgPool2D GlobalAvgPool3D GlobalAveragePooling1D "
    "GlobalAveragePooling2D GlobalAveragePooling3D": "lm.GlobalAvgPool()",
    "GlobalMaxPool1D GlobalMaxPool2D GlobalMaxPool3D GlobalMaxPooling1D GlobalMaxPooling2D "
    "GlobalMaxPooling3D": "lm.GlobalMaxPool()",
    "FractionalMaxPool2d FractionalMaxPool3d": (
        "There is no such layer; lm.AdaptiveMaxPool(size) comes nearest."
    ),
    "MaxUnpool1d MaxUnpool2d MaxUnpool3d": (
        "lm.MaxUnpool(size=size), whose size is that before pooling."
    ),
    # Activations
    "Activation": (
        "Each activation is a layer: lm.ReLU(), lm.Tanh(), lm.Sigmoid(), lm.GELU(), lm.Softmax()."
    ),
    "Softmax2d": "lm.Softmax(axis=1)",
    "Swish swish": "lm.SiLU()",
    # Normalisation
    "BatchNorm1d BatchNorm2d BatchNorm3d BatchNormalization LazyBatchNorm1d LazyBatchNorm2d "
    "LazyBatchNorm3d SyncBatchNorm": "lm.BatchNorm()",
    "InstanceNorm1d InstanceNorm2d InstanceNorm3d LazyInstanceNorm1d LazyInstanceNorm2d "
    "LazyInstanceNorm3d": "lm.InstanceNorm()",
    "LayerNormalization": "lm.LayerNorm()",
    "GroupNormalization": "lm.GroupNorm(groups)",
    "RMSNormalization": "lm.RMSNorm()",
    "UnitNormalization": "There is no such layer; lm.RMSNorm(affine=False) comes nearest.",
    "CrossMapLRN2d": "lm.LocalResponseNorm(window)",
    "Normalization Normalize": (
        "There is no such layer; tensors are normalised by (x - mean) / deviation, and by "
        "lm.Rescale(scale, offset=0.0) where both are single numbers."
    ),
    "Rescaling": "lm.Rescale(scale)",
    # Regularisation
    "Dropout1d Dropout2d Dropout3d SpatialDropout1D SpatialDropout2D SpatialDropout3D": (
        "lm.SpatialDropout(probability)"
    ),
    "FeatureAlphaDropout": "lm.AlphaDropout(probability, whole_channels=True)",
    "GaussianDropout": (
        "There is no such layer; lm.Dropout(probability) or lm.GaussianNoise(deviation) comes "
        "nearest."
    ),
    "ActivityRegularization": (
        "There is no such layer; layers take a weight_regularizer, such as lm.L2(1e-4)."
    ),
    "StochasticDepth": "lm.DropPath(probability)",
    # Sequences and attention
    "SimpleRNN": "lm.RNN(features)",
    "Bidirectional": "It is an option here: lm.LSTM(features, bidirectional=True).",
    "TimeDistributed": "Not needed: lm.Linear(features) works along the last axis of any tensor.",
    "RNNBase": "lm.RNN(features)",
    "RNNCellBase SimpleRNNCell StackedRNNCells": _CELL,
    "ConvLSTM1D ConvLSTM2D ConvLSTM3D": (
        "There is no such layer; lm.ops.recurrence makes one of a step with convolutions."
    ),
    "Masking": "Masks are operands of attention; recurrent layers have none.",
    "MultiheadAttention": "lm.MultiHeadAttention(heads)",
    "Attention AdditiveAttention": (
        "lm.ops.attention is the function, lm.MultiHeadAttention(heads) the layer."
    ),
    "GroupQueryAttention GroupedQueryAttention": "lm.MultiHeadAttention(heads, key_heads=groups)",
    "TransformerEncoderLayer": "lm.TransformerEncoderBlock(heads, hidden=hidden)",
    "TransformerDecoderLayer": "lm.TransformerDecoderBlock(heads, hidden=hidden)",
    "TransformerEncoder TransformerDecoder Transformer": (
        "Apply several blocks one after another: "
        "lm.TransformerEncoderBlock(heads, hidden=hidden) and "
        "lm.TransformerDecoderBlock(heads, hidden=hidden)."
    ),
    # Shapes and images
    "Unflatten": "lm.Reshape(*dimensions)",
    "Permute": "There is no such layer; lm.ops.transpose(x, axes) in the functional style.",
    "RepeatVector": "There is no such layer; lm.ops.broadcast_to repeats a tensor.",
    "UpSampling1D UpSampling2D UpSampling3D UpsamplingNearest2d": "lm.Upsample(scale=2)",
    "UpsamplingBilinear2d": 'lm.Upsample(scale=2, mode="bilinear", align_corners=True)',
    "ZeroPadding1D": "lm.Pad(widths), or lm.Pad(((before, after),)) for a pair.",
    "ZeroPadding2D ZeroPadding3D": "lm.Pad(widths), in the same order.",
    **_padding("ZeroPad", ""),
    **_padding("ConstantPad", ", value=value"),
    **_padding("ReflectionPad", ', mode="reflect"'),
    **_padding("ReplicationPad", ', mode="replicate"'),
    **_padding("CircularPad", ', mode="circular"'),
    "Cropping1D": "lm.Crop(widths), or lm.Crop(((before, after),)) for a pair.",
    "Cropping2D Cropping3D": "lm.Crop(widths), in the same order.",
    "CenterCrop": "lm.Crop(widths) removes as many elements as widths say.",
    "Resizing": "There is no such layer; lm.Upsample(scale=2) enlarges by a factor.",
    # Several inputs
    "Concatenate": "lm.Concat()",
    "Average Subtract Maximum Minimum": (
        "Tensors are combined by operators: (a + b) / 2, a - b, lm.ops.maximum, lm.ops.minimum."
    ),
    "Dot": "There is no such layer; lm.ops.matmul and lm.ops.einsum are the products.",
    # Building networks
    "Module": "A layer of your own is a subclass of lm.Layer; a network is an lm.Network.",
    "Functional": "lm.Network(inputs, outputs)",
    "Container ModuleDict ModuleList Pipeline": _WRAPPER,
    "Parameter ParameterDict ParameterList": (
        "The forward of an lm.Layer makes its parameters: scope.parameter(name, shape=..., "
        "init=...)."
    ),
    "Buffer": "The forward of an lm.Layer makes its states: scope.state.",
    "InputLayer InputSpec": "lm.Input(*shape)",
    "Lambda Wrapper": "Write a subclass of lm.Layer, or apply lm.ops in the functional style.",
    "DataParallel FlaxLayer JaxLayer TFSMLayer TorchModuleWrapper": (
        "There is no counterpart; an lm.Model runs on one device."
    ),
    # Preparation of data
    "RandomHorizontalFlip": "lm.RandomFlip()",
    "RandomVerticalFlip": "lm.RandomFlip(axis=-2)",
    "RandomTranslation": "lm.RandomShift(2), in whole pixels, or lm.RandomAffine(shift=0.1).",
    "RandomZoom": "lm.RandomAffine(scale=(0.8, 1.2))",
    "RandomShear": "lm.RandomAffine(shear=10.0)",
    "ColorJitter RandomColorJitter": "lm.ColourJitter(brightness=0.2, contrast=0.2)",
    "RandomBrightness": "lm.ColourJitter(brightness=0.2)",
    "RandomContrast": "lm.ColourJitter(contrast=0.2)",
    "RandomSaturation": "lm.ColourJitter(saturation=0.2)",
    "RandomHue": "lm.ColourJitter(hue=0.1)",
    "RandomGrayscale": "lm.RandomGreyscale()",
    "MixUp": "lm.Mixup(alpha=1.0)",
    "AugMix AutoContrast Equalization MaxNumBoundingBoxes RandAugment RandomColorDegeneration "
    "RandomElasticTransform RandomGaussianBlur GaussianBlur RandomInvert RandomPerspective "
    "RandomPosterization RandomSharpness RandomResizedCrop Solarization": _IMAGES,
    "CategoryEncoding Discretization HashedCrossing Hashing IntegerLookup StringLookup "
    "TextVectorization": _TEXT,
    "MelSpectrogram STFTSpectrogram": "There is no such layer; make the spectra before training.",
}

# Ready networks in torchvision.models and keras.applications.
NETWORKS: dict[str, str] = {
    **{
        f"resnet{depth} ResNet{depth}": f"lm.networks.resnet({depth})"
        for depth in (18, 34, 50, 101, 152)
    },
    **{f"vgg{depth} VGG{depth}": f"lm.networks.vgg({depth})" for depth in (11, 13, 16, 19)},
    "ResNet": "lm.networks.resnet(18)",
    "VGG": "lm.networks.vgg(16)",
    "MobileNetV2 MobileNet": "lm.networks.mobilenet_v2()",
    "LeNet LeNet5": "lm.networks.lenet()",
    "MLP": "lm.networks.mlp((64, 32))",
    "UNet": "lm.networks.unet()",
}

"""Ready networks from papers: functions that return a `Network`, one family a file.

Comes in: the numbers of an architecture. Leaves: a network of public layers only, so a variant is a
copy with a line changed. Each reads like the table in its paper. Read `lenet.py` first.
"""

from lamina.base.lazy import loaded_when_used

if not loaded_when_used(__name__):
    from lamina.networks.autoencoder import Autoencoder as Autoencoder
    from lamina.networks.autoencoder import autoencoder as autoencoder
    from lamina.networks.autoencoder import variational_autoencoder as variational_autoencoder
    from lamina.networks.dcgan import dcgan as dcgan
    from lamina.networks.lenet import lenet as lenet
    from lamina.networks.mlp import mlp as mlp
    from lamina.networks.mobilenet import mobilenet_v2 as mobilenet_v2
    from lamina.networks.recurrent import lstm_classifier as lstm_classifier
    from lamina.networks.resnet import resnet as resnet
    from lamina.networks.tabm import tabm as tabm
    from lamina.networks.transformer import transformer_encoder as transformer_encoder
    from lamina.networks.unet import unet as unet
    from lamina.networks.vgg import vgg as vgg

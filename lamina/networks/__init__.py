"""Ready networks from papers: functions that return a `Network`, one family a file."""

from lamina.networks.transformer import transformer_encoder as transformer_encoder

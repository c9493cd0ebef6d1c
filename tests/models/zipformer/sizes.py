"""Zipformers to compare: as small as shows everything, and the smallest that the authors train."""

TINY = {  # of two stacks that train within a test
    "encoder_dim": (8, 12),
    "encoder_unmasked_dim": (8, 8),
    "feedforward_dim": (8, 8),
    "num_encoder_layers": (1, 1),
    "num_heads": (2, 2),
    "cnn_module_kernel": (3, 3),
    "downsampling_factor": (1, 2),
}
SMALL = {  # of S: stacks of one width after a narrower one
    "encoder_dim": (24, 32, 32),
    "encoder_unmasked_dim": (24, 24, 24),
    "feedforward_dim": (32, 48, 48),
    "num_encoder_layers": (1, 2, 1),
    "num_heads": (4, 4, 4),
    "cnn_module_kernel": (15, 7, 15),
    "downsampling_factor": (1, 4, 2),
}
WAVE = {  # of M and L: stacks that grow and shrink, and not all channels come from the last one
    "encoder_dim": (16, 24, 40, 24),
    "encoder_unmasked_dim": (16, 16, 24, 16),
    "feedforward_dim": (32, 32, 48, 32),
    "num_encoder_layers": (1, 1, 2, 1),
    "num_heads": (4, 4, 8, 4),
    "cnn_module_kernel": (15, 15, 7, 15),
    "downsampling_factor": (1, 2, 8, 2),
}
FULL = {
    "downsampling_factor": (1, 2, 4, 8, 4, 2),
    "num_heads": (4, 4, 4, 8, 4, 4),
    "cnn_module_kernel": (31, 31, 15, 15, 15, 31),
}
S = {
    **FULL,
    "encoder_dim": (192, 256, 256, 256, 256, 256),
    "encoder_unmasked_dim": (192, 192, 192, 192, 192, 192),
    "feedforward_dim": (512, 768, 768, 768, 768, 768),
    "num_encoder_layers": (2, 2, 2, 2, 2, 2),
}
M = {
    **FULL,
    "encoder_dim": (192, 256, 384, 512, 384, 256),
    "encoder_unmasked_dim": (192, 192, 256, 256, 256, 192),
    "feedforward_dim": (512, 768, 1024, 1536, 1024, 768),
    "num_encoder_layers": (2, 2, 3, 4, 3, 2),
}
L = {
    **FULL,
    "encoder_dim": (192, 256, 512, 768, 512, 256),
    "encoder_unmasked_dim": (192, 192, 256, 320, 256, 192),
    "feedforward_dim": (512, 768, 1536, 2048, 1536, 768),
    "num_encoder_layers": (2, 2, 4, 5, 4, 2),
}

"""Zipformers to compare: as small as shows everything, and the smallest that the authors train."""

SMALL = {  # of S: stacks of one width behind a narrower one
    "d_model": (24, 32, 32),
    "unmasked_width": (24, 24, 24),
    "d_feedforward": (32, 48, 48),
    "num_layers": (1, 2, 1),
    "num_heads": (4, 4, 4),
    "kernel_width": (15, 7, 15),
    "downsampling": (1, 4, 2),
}
WAVE = {  # of M and L: stacks that grow and shrink, and not all channels come from the last one
    "d_model": (16, 24, 40, 24),
    "unmasked_width": (16, 16, 24, 16),
    "d_feedforward": (32, 32, 48, 32),
    "num_layers": (1, 1, 2, 1),
    "num_heads": (4, 4, 8, 4),
    "kernel_width": (15, 15, 7, 15),
    "downsampling": (1, 2, 8, 2),
}
FULL = {
    "downsampling": (1, 2, 4, 8, 4, 2),
    "num_heads": (4, 4, 4, 8, 4, 4),
    "kernel_width": (31, 31, 15, 15, 15, 31),
}
S = {
    **FULL,
    "d_model": (192, 256, 256, 256, 256, 256),
    "unmasked_width": (192, 192, 192, 192, 192, 192),
    "d_feedforward": (512, 768, 768, 768, 768, 768),
    "num_layers": (2, 2, 2, 2, 2, 2),
}
M = {
    **FULL,
    "d_model": (192, 256, 384, 512, 384, 256),
    "unmasked_width": (192, 192, 256, 256, 256, 192),
    "d_feedforward": (512, 768, 1024, 1536, 1024, 768),
    "num_layers": (2, 2, 3, 4, 3, 2),
}
L = {
    **FULL,
    "d_model": (192, 256, 512, 768, 512, 256),
    "unmasked_width": (192, 192, 256, 320, 256, 192),
    "d_feedforward": (512, 768, 1536, 2048, 1536, 768),
    "num_layers": (2, 2, 4, 5, 4, 2),
}

"""What the PyTorch programs of this folder share: reproducible settings, ballast that takes part in the work, checksums on the GPU."""
import os

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # before CUDA starts: deterministic matrix products

import torch  # noqa: E402
from torch import nn  # noqa: E402

from work import MASK, pieces_of  # noqa: E402

MULTIPLIER = 6364136223846793005
CHUNK_WORDS = 4 << 20


def prepare(args, deterministic=True):
    torch.manual_seed(args.seed)
    if deterministic:
        torch.use_deterministic_algorithms(True)
        torch.backends.cudnn.benchmark = False
    return torch.device(args.device)


def signed(word):
    """A 64-bit word as PyTorch's int64 takes it."""
    word &= MASK
    return word - (1 << 64) if word >> 63 else word


def words_of(tensor):
    """The bytes of a tensor as int64, padded with zeros; float and integer types, any shape."""
    flat = tensor.detach().contiguous().reshape(-1).view(torch.uint8)
    if flat.numel() % 8 or flat.data_ptr() % 8:
        flat = torch.cat([flat, flat.new_zeros(-flat.numel() % 8)])
    return flat.view(torch.int64)


def checksum(tensors):
    """Every bit of every tensor at its place counts. 64-bit integer arithmetic, so the order of the sums does not."""
    total = 0
    salts = None
    for tensor in tensors:
        if tensor.numel() == 0:
            continue
        words = words_of(tensor)
        if salts is None or salts.device != words.device:
            salts = torch.arange(CHUNK_WORDS, dtype=torch.int64, device=words.device).mul_(MULTIPLIER).bitwise_or_(1)
        for begin in range(0, words.numel(), CHUNK_WORDS):
            chunk = words[begin:begin + CHUNK_WORDS]
            mixed = (chunk + begin) * salts[:chunk.numel()]
            mixed ^= mixed >> 29
            total = (total * 31 + int(mixed.sum())) & MASK
    return f"{total:016x}"


class Ballast:
    """Memory beyond the model's, to fill what the program is to hold. Each touch changes every byte, so a lost one shows at the end."""

    def __init__(self, total, device, seed):
        self.pieces = []
        for i, size in enumerate(pieces_of(max(total, 0))):
            piece = torch.arange(size // 8, dtype=torch.int64, device=device)
            piece.mul_(signed(MULTIPLIER * (2 * seed + 1))).add_(i)
            self.pieces.append(piece)

    def touch(self, i):
        for piece in self.pieces:
            piece.mul_(MULTIPLIER).add_(i)


class TorchProgram:
    """Held bytes, waiting and the checksum; a program adds unit() and state()."""

    # What the model and its steps need, about. Not asked of the allocator: two runs must hold the same ballast to be comparable, and what an
    # allocator has reserved is not always the same.
    own_bytes = 1 << 30

    def __init__(self, args, deterministic=True):
        self.args = args
        self.device = prepare(args, deterministic)
        self.on_gpu = self.device.type == "cuda"
        self.ballast = Ballast(0, self.device, args.seed)
        self.last = None  # a tensor that says how the work goes

    def fill(self):
        """Takes what is missing to args.held."""
        self.ballast = Ballast(self.args.held - (self.own_bytes if self.on_gpu else 0), self.device, self.args.seed)

    def settle(self):
        if self.on_gpu:
            torch.cuda.synchronize()

    def held(self):
        return torch.cuda.max_memory_reserved() if self.on_gpu else 0

    def state(self):
        """The tensors that hold what was computed."""
        raise NotImplementedError

    def checksum(self):
        return checksum([*self.state(), *self.ballast.pieces])

    def value(self):
        return float(self.last) if self.last is not None else 0.0


class Perceptron(nn.Module):
    """Layers of equal width, GELU between them."""

    def __init__(self, width, depth):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(depth))

    def forward(self, x):
        for layer in self.layers:
            x = torch.nn.functional.gelu(layer(x)) + x * 0.5
        return x


def states(model, optimizer=None):
    """Weights, buffers and the optimizer's moments, in a fixed order."""
    tensors = [value for _, value in sorted(model.state_dict().items())]
    if optimizer is not None:
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                tensors += [v for _, v in sorted(optimizer.state.get(parameter, {}).items()) if torch.is_tensor(v) and v.dim() > 0]
    return tensors

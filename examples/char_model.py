"""A small GPT that learns to write Python's reference manual, one character after the other.

byteps launch --workers 2 --servers 1 -- python examples/char_model.py

A script for DistributedDataParallel; its gradients are summed by BytePS through DDP's communication hook.  The text is
the help on Python's statements and operators, which comes with Python itself.
"""

import argparse
from pydoc_data.topics import topics

import torch
from torch import distributed, nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

import byteps.torch as bps


class Block(nn.Module):
    """Attention to what came before, then a feed-forward layer."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.before_attention, self.before_mixing = nn.LayerNorm(width), nn.LayerNorm(width)
        self.project, self.merge = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mix = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        parts = self.project(self.before_attention(x)).view(batch, length, 3, self.heads, width // self.heads)
        query, key, value = parts.permute(2, 0, 3, 1, 4)
        seen = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.merge(seen.transpose(1, 2).reshape(batch, length, width))
        return x + self.mix(self.before_mixing(x))


class CharacterModel(nn.Module):
    """Characters in, for each the logits of the next one out."""

    def __init__(self, characters: int, length: int, width: int = 64, heads: int = 4, layers: int = 2) -> None:
        super().__init__()
        self.character, self.position = nn.Embedding(characters, width), nn.Embedding(length, width)
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(layers)), nn.LayerNorm(width))
        self.output = nn.Linear(width, characters)

    def forward(self, text: torch.Tensor) -> torch.Tensor:
        places = torch.arange(text.shape[1])
        return self.output(self.blocks(self.character(text) + self.position(places)))


def manual() -> tuple[list[str], torch.Tensor]:
    """The characters that there are, and the text as their places in that list."""
    text = "".join(topics[name] for name in sorted(topics) if topics[name].isascii())
    characters = sorted(set(text))
    place = {character: index for index, character in enumerate(characters)}
    return characters, torch.tensor([place[character] for character in text])


def main() -> None:
    parser = argparse.ArgumentParser(description="Train a small GPT on Python's reference manual.")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--batch-size", type=int, default=16, help="per worker")
    parser.add_argument("--length", type=int, default=64, help="characters that it sees")
    parser.add_argument("--write", type=int, default=200, help="characters to write at the end")
    args = parser.parse_args()

    bps.init()
    distributed.init_process_group("gloo")  # whose place byteps knows; DDP still spreads the first parameters by it
    torch.manual_seed(bps.rank())
    torch.set_num_threads(1)
    characters, codes = manual()
    model = CharacterModel(len(characters), args.length)
    ddp = DistributedDataParallel(model)
    ddp.register_comm_hook(None, bps.ddp_hook)
    optimizer = torch.optim.AdamW(ddp.parameters(), lr=3e-3)

    for step in range(args.steps):
        starts = torch.randint(len(codes) - args.length, (args.batch_size, 1))  # different on every worker
        sample = codes[starts + torch.arange(args.length + 1)]
        optimizer.zero_grad()
        loss = functional.cross_entropy(ddp(sample[:, :-1]).flatten(0, 1), sample[:, 1:].flatten())
        loss.backward()
        optimizer.step()
        if step % 25 == 0 or step == args.steps - 1:
            mean = bps.push_pull(loss.detach(), "loss").item()
            if bps.rank() == 0:
                print(f"step {step}: loss {mean:.3f}", flush=True)

    if bps.rank() == 0:
        written = codes[:1]
        with torch.no_grad():
            for _ in range(args.write):
                logits = model(written[None, -args.length :])[0, -1]
                written = torch.cat([written, torch.multinomial(logits.softmax(0), 1)])
        print("".join(characters[code] for code in written), flush=True)
    distributed.destroy_process_group()
    bps.shutdown()


if __name__ == "__main__":
    main()

"""Writes a GGUF file's model in Q8_0, for a peer that reads it: python quantize.py FROM TO

Matrices whose rows have a multiple of 32 numbers are expanded and rounded; all other tensors are stored in float32.
"""

import os
import sys

from gguf import GGMLQuantizationType, GGUFReader, GGUFValueType, GGUFWriter
from gguf.quants import dequantize, quantize


def main(source, target):
    reader = GGUFReader(source)
    partial = f"{target}.partial"
    writer = GGUFWriter(partial, reader.fields["general.architecture"].contents())
    for name, field in reader.fields.items():
        # The writer adds the header and the architecture.
        if name.startswith("GGUF.") or name in ("general.architecture", "general.file_type"):
            continue
        kind = field.types[0]
        inner = field.types[-1] if kind == GGUFValueType.ARRAY else None
        writer.add_key_value(name, field.contents(), kind, inner)
    q8 = GGMLQuantizationType.Q8_0
    for tensor in reader.tensors:
        values = dequantize(tensor.data, tensor.tensor_type).reshape(tuple(reversed(tensor.shape.tolist())))
        if values.ndim == 2 and values.shape[-1] % 32 == 0:
            writer.add_tensor(tensor.name, quantize(values, q8), raw_dtype=q8)
        else:
            writer.add_tensor(tensor.name, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    os.replace(partial, target)


if __name__ == "__main__":
    main(*sys.argv[1:])

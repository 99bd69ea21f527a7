"""Newton's method on draws that are never stored, for many latents."""

from curvi.methods.streamed_newton.method import StreamedNewton as StreamedNewton

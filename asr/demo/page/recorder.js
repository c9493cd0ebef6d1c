// Hands the first channel of a microphone to the page, in pieces; runs in the thread of audio.
const PIECE = 2048; // samples

class Recorder extends AudioWorkletProcessor {
  constructor() {
    super();
    this.piece = new Float32Array(PIECE);
    this.filled = 0;
    this.ended = false;
    this.port.onmessage = () => {
      this.ended = true;
      this.port.postMessage(this.piece.slice(0, this.filled));
      this.port.postMessage(null);
    };
  }

  process([input]) {
    if (input.length && !this.ended) {
      this.piece.set(input[0], this.filled); // PIECE is a multiple of the 128 samples that come at a time
      this.filled += input[0].length;
      if (this.filled >= PIECE) {
        this.port.postMessage(this.piece.slice());
        this.filled = 0;
      }
    }
    return !this.ended;
  }
}

registerProcessor("recorder", Recorder);

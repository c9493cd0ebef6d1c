// The microphone: samples of 16 bits as they are spoken, and at the end all of them as a WAV file.

const REASONS = {
  NotAllowedError: "The browser may not use the microphone. Allow it beside the address of this page, and record again.",
  NotFoundError: "There is no microphone. Connect one, or choose a file.",
  NotReadableError: "Another program uses the microphone. End it, and record again.",
};

export class Microphone {
  /** Starts to record; `heard` is called with each piece. Rejects with an Error whose message can be shown. */
  static async open(heard) {
    if (!navigator.mediaDevices) {
      throw new Error("Browsers give no microphone to this address. Open the page as http://localhost or http://127.0.0.1.");
    }
    const microphone = new Microphone(heard);
    try {
      await microphone.start();
    } catch (error) {
      microphone.release();
      throw new Error(REASONS[error.name] ?? `The microphone cannot be used: ${error.message}`);
    }
    return microphone;
  }

  constructor(heard) {
    this.heard = heard;
    this.pieces = [];
    this.numSamples = 0;
  }

  async start() {
    // what cleans calls up for listeners takes away what a recognizer knows
    const plain = { channelCount: 1, echoCancellation: false, noiseSuppression: false, autoGainControl: true };
    this.stream = await navigator.mediaDevices.getUserMedia({ audio: plain });
    this.context = new AudioContext();
    await this.context.audioWorklet.addModule("/recorder.js");
    await this.context.resume();
    this.rate = this.context.sampleRate;
    this.node = new AudioWorkletNode(this.context, "recorder", { numberOfOutputs: 0 });
    this.ended = new Promise((resolve) => {
      this.node.port.onmessage = ({ data }) => (data ? this.keep(data) : resolve());
    });
    this.context.createMediaStreamSource(this.stream).connect(this.node);
  }

  keep(samples) {
    const piece = Int16Array.from(samples, (value) => Math.max(-1, Math.min(1, value)) * 32767);
    this.pieces.push(piece);
    this.numSamples += piece.length;
    this.heard(piece);
  }

  get seconds() {
    return this.numSamples / this.rate;
  }

  /** Stops, and returns the recording. */
  async stop() {
    this.node.port.postMessage("end");
    await this.ended;
    this.release();
    return wav(this.pieces, this.rate);
  }

  release() {
    this.stream?.getTracks().forEach((track) => track.stop());
    this.context?.close();
  }
}

/** Returns a WAV file of one channel; samples are in the order of bytes of the machine, little-endian on all browsers. */
function wav(pieces, rate) {
  const numBytes = pieces.reduce((sum, piece) => sum + piece.byteLength, 0);
  const header = new DataView(new ArrayBuffer(44));
  const text = (place, letters) => [...letters].forEach((letter, i) => header.setUint8(place + i, letter.charCodeAt(0)));
  text(0, "RIFF");
  header.setUint32(4, 36 + numBytes, true);
  text(8, "WAVEfmt ");
  header.setUint32(16, 16, true); // bytes of the format
  header.setUint16(20, 1, true); // PCM
  header.setUint16(22, 1, true); // channels
  header.setUint32(24, rate, true);
  header.setUint32(28, 2 * rate, true);
  header.setUint16(32, 2, true);
  header.setUint16(34, 16, true);
  text(36, "data");
  header.setUint32(40, numBytes, true);
  return new Blob([header, ...pieces], { type: "audio/wav" });
}

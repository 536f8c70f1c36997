/* A library that is linked with a decoder (fake_video.c), as extensions of Python are: nothing looks the decoder's functions up. */
int cuvidCreateDecoder(void** decoder, void* driver);
int cuvidDecodePicture(void* decoder, unsigned long long target, unsigned long long bytes);

int create_decoder(void** decoder, void* driver) { return cuvidCreateDecoder(decoder, driver); }
int decode_picture(void* decoder, unsigned long long target, unsigned long long bytes) {
  return cuvidDecodePicture(decoder, target, bytes);
}

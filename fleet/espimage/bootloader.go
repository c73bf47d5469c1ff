package espimage

import "io"

// BootloaderOffset returns the offset in flash at which the chip's ROM looks for the
// bootloader.
func BootloaderOffset(chip string) int64 {
	switch chip {
	case "esp32", "esp32s2":
		return 0x1000
	case "esp32p4", "esp32c5", "esp32h4", "esp32s31":
		return 0x2000
	}
	return 0
}

// ParseBootloader parses the bootloader that begins at the first byte of r and ends within
// limit. The image's Size ends with its hash or signature.
func ParseBootloader(r io.ReaderAt, limit int64) (*Image, error) {
	start, err := readStart(r, limit)
	if err != nil {
		return nil, aboutBootloader(err)
	}
	switch {
	case isApp(start):
		return nil, newFault(ReasonBootloader, "is_app")
	case len(start) < minSize || start[0] != appMagic:
		return nil, newFault(ReasonBootloader, "begins", "byte_hex", start[0])
	}
	img := &Image{Header: decodeHeader(start)}
	if img.Chip = chips[img.Header.ChipID]; img.Chip == "" {
		return nil, newFault(ReasonBootloader, "chip_unknown", "id_hex", img.Header.ChipID)
	}
	return img, aboutBootloader(img.readBare(r, limit))
}

// readBare reads an image without a descriptor.
func (img *Image) readBare(r io.ReaderAt, limit int64) (err error) {
	if err := img.readSegments(r, limit); err != nil {
		return err
	}
	if err := img.verify(r, limit); err != nil {
		return err
	}
	if img.Signatures, err = readSignatures(r, img.Length, limit, nil); err != nil {
		return err
	}
	img.Size = img.Length
	if len(img.Signatures) > 0 {
		img.Size = min(signatureSector(img.Length)+sectorSize, limit)
	}
	return nil
}

func aboutBootloader(err error) error {
	f, ok := err.(*Fault)
	if !ok {
		return err
	}
	return newFault(ReasonBootloader, "damaged", "cause", f)
}

// Package espimage reads ESP32 application images as the device's esp_ota_end and bootloader
// read them, and reports by code and parameters what is wrong with any other file.
//
// It reads from an [io.ReaderAt] and uses a few KiB of memory, whatever the file's size or
// content. It does not depend on devices: package firmware decides which devices an image
// fits. Offsets and sizes are in bytes; everything in an image is little-endian.
//
// There is no state: functions are safe for concurrent use.
package espimage

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
)

// Sizes of the format.
const (
	headerSize     = 24
	segmentHeader  = 8
	descriptorSize = 256
	descriptorAt   = headerSize + segmentHeader
	minSize        = descriptorAt + descriptorSize
	maxSegments    = 16
	maxSegmentSize = 16 << 20 // the bootloader refuses more
	sectorSize     = 4096

	appMagic        = 0xE9
	descriptorMagic = 0xABCD5432
)

// An Image is an application image that a device can install.
type Image struct {
	// Offset and Size are the position of the image in the file. A separately uploaded image
	// is the whole file, including any bytes after its end; an image inside a merged binary
	// ends with its hash or signature.
	Offset, Size int64
	// Length is the length of the image from its header to its checksum or hash.
	Length int64
	// Merged is the partition that contains the image; nil if the file is the image.
	Merged *Partition

	Header     Header
	Descriptor Descriptor
	Chip       string // as devices report it: "esp32s3"
	Segments   []Segment
	Checksum   byte
	SHA256     string // appended hash, hex; "" if none
	Signatures []Signature
}

// A Segment is a part of the image that is loaded to one place in memory.
type Segment struct {
	LoadAddr uint32
	Offset   int64 // of its data in the image
	Size     uint32
}

// Parse parses the image in the first size bytes of r: a single image, or the first
// application of a merged binary. It checks the signatures against keys. The error is a
// [*Fault] unless r cannot be read.
func Parse(r io.ReaderAt, size int64, keys ...Key) (*Image, error) {
	start, err := readStart(r, size)
	if err != nil {
		return nil, err
	}
	table, err := findMerged(r, size, start)
	if err != nil {
		return nil, err
	}
	if table != nil {
		return parseMerged(r, size, table, keys)
	}
	if f := foreign(start, size); f != nil {
		return nil, f
	}
	img, err := parseApp(r, size, keys)
	if err != nil {
		return nil, err
	}
	img.Size = size
	return img, nil
}

// parseApp parses an image that begins at the first byte of r and ends within limit.
func parseApp(r io.ReaderAt, limit int64, keys []Key) (*Image, error) {
	start, err := readStart(r, limit)
	if err != nil {
		return nil, err
	}
	if len(start) < minSize {
		return nil, newFault(ReasonSize, "short", "size", limit, "least", minSize)
	}
	img := &Image{Header: decodeHeader(start), Descriptor: decodeDescriptor(start[descriptorAt:])}
	if err := img.checkStart(start); err != nil {
		return nil, err
	}
	if err := img.readSegments(r, limit); err != nil {
		return nil, err
	}
	if err := img.verify(r, limit); err != nil {
		return nil, err
	}
	img.Signatures, err = readSignatures(r, img.Length, limit, keys)
	return img, err
}

// checkStart checks the header and the descriptor.
func (img *Image) checkStart(start []byte) error {
	if start[0] != appMagic {
		return newFault(ReasonMagic, "begins", "byte_hex", start[0])
	}
	if binary.LittleEndian.Uint32(start[descriptorAt:]) != descriptorMagic {
		return noDescriptor(start)
	}
	chip, ok := chips[img.Header.ChipID]
	if !ok {
		return newFault(ReasonChip, "unknown", "id_hex", img.Header.ChipID)
	}
	img.Chip = chip
	return nil
}

func noDescriptor(start []byte) error {
	const bootloaderDescriptor = 0x50 // first byte of esp_bootloader_desc_t
	if start[descriptorAt] == bootloaderDescriptor {
		return newFault(ReasonDescriptor, "bootloader")
	}
	return newFault(ReasonDescriptor, "missing")
}

// readStart reads the header and the descriptor, or the available part of them.
func readStart(r io.ReaderAt, size int64) ([]byte, error) {
	if size <= 0 {
		return nil, newFault(ReasonSize, "empty")
	}
	start := make([]byte, min(size, minSize))
	return start, readAt(r, start, 0)
}

// readAt fills p. If the reader ends early, its size was wrong, which is not a fault of the
// image.
func readAt(r io.ReaderAt, p []byte, off int64) error {
	n, err := r.ReadAt(p, off)
	if n == len(p) {
		return nil
	}
	if err == nil || errors.Is(err, io.EOF) {
		err = io.ErrUnexpectedEOF
	}
	return fmt.Errorf("reading the image at %d: %w", off, err)
}

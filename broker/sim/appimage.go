package sim

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
)

// AppImage creates an app image that the devices of a board accept, of about the given size in
// bytes and with real layout, checksum and hash, but without runnable code. For a version that
// new devices run it contains their exact build, so they can be returned to it.
func AppImage(boardName, version string, size int) ([]byte, error) {
	b, err := boardByName(boardName)
	if err != nil {
		return nil, err
	}
	if len(version) == 0 || len(version) > 31 {
		return nil, fmt.Errorf("version %q: want 1 to 31 characters", version)
	}
	compiled, idf := "Nov 20 2026T09:00:00Z", "v6.0.2"
	for _, r := range released {
		if r.version == version {
			compiled, idf = r.compiled, r.idf
		}
	}
	elf := digest(0, "elf", b.name, version)
	image := appHeader(b.chip.imageID, uint32(max(size-descriptorEnd-64, 0)))
	image = append(image, appDescriptor(version, compiled, idf, elf[:])...)
	image = append(image, filler(elf[:], max(size-descriptorEnd-64, 0))...)
	return sealed(image), nil
}

// appHeader returns the headers of the image and its first segment.
func appHeader(chipID uint16, payload uint32) []byte {
	h := make([]byte, 32)
	h[0], h[1], h[2], h[3] = 0xE9, 1, 2, 0x4F
	binary.LittleEndian.PutUint32(h[4:], 0x40374000)
	h[8] = 0xEE
	binary.LittleEndian.PutUint16(h[12:], chipID)
	binary.LittleEndian.PutUint16(h[17:], 65535) // any revision
	h[23] = 1                                    // a SHA-256 follows
	binary.LittleEndian.PutUint32(h[24:], 0x3C000020)
	binary.LittleEndian.PutUint32(h[28:], 256+payload)
	return h
}

func appDescriptor(version, compiled, idf string, elf []byte) []byte {
	d := make([]byte, 256)
	binary.LittleEndian.PutUint32(d, 0xABCD5432)
	copy(d[16:48], version)
	copy(d[48:80], "xiaozhi")
	if len(compiled) >= 20 {
		copy(d[80:96], compiled[12:20])
		copy(d[96:112], compiled[:11])
	}
	copy(d[112:144], idf)
	copy(d[144:176], elf)
	return d
}

// filler returns bytes that are equal for equal builds and do not compress.
func filler(seed []byte, n int) []byte {
	r := rand.NewChaCha8([32]byte(seed))
	out := make([]byte, n)
	_, _ = r.Read(out)
	return out
}

// sealed appends checksum and hash to header and segments.
func sealed(image []byte) []byte {
	xor := byte(0xEF)
	for _, b := range image[32:] {
		xor ^= b
	}
	for len(image)%16 != 15 {
		image = append(image, 0)
	}
	image = append(image, xor)
	sum := sha256.Sum256(image)
	return append(image, sum[:]...)
}

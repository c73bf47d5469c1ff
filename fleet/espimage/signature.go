package espimage

import (
	"crypto/sha256"
	"crypto/sha512"
	"encoding/binary"
	"encoding/hex"
	"hash/crc32"
	"io"
)

// A Signature is a Secure Boot v2 signature block. Up to three of them are in the first 4 KiB
// sector after the image; each signs all bytes before that sector.
type Signature struct {
	Scheme    string           // "rsa3072", "ecdsa192", "ecdsa256", "ecdsa384"; "" if unknown
	KeyDigest string           // SHA-256 of the public key in the form of the chip's fuses, hex
	Valid     bool             // CRC, image digest and signature are correct
	Trusted   bool             // valid and made with one of the given keys
	Problem   SignatureProblem // why it is not valid; "" if it is
}

// A SignatureProblem is the reason why a signature is invalid.
type SignatureProblem string

const (
	SignatureUnknown    SignatureProblem = "block_unknown" // an unknown kind of block
	SignatureCRC        SignatureProblem = "block_crc"     // the block is damaged
	SignatureOtherImage SignatureProblem = "other_image"   // the digest in the block is not the image's
	SignatureWrong      SignatureProblem = "signature"     // not made with the key in the block
)

const (
	signatureMagic   = 0xE7
	signatureBlock   = 1216
	signatureBlocks  = 3
	signatureCRC     = 1196 // CRC-32 of the bytes before it
	versionRSA       = 2
	versionECDSA     = 3
	signatureDigest  = 4  // SHA-256 or SHA-384 of the signed bytes
	signatureKey     = 36 // after a SHA-256
	signatureKey384  = 52
	ecdsaWithSHA384  = 1
	rsaKeySize       = 776 // n, e, R^2 mod n, -1/n mod 2^32
	rsaBytes         = 384
	maxSignatureRead = signatureBlocks * signatureBlock
)

func signatureSector(length int64) int64 { return (length + sectorSize - 1) &^ (sectorSize - 1) }

// readSignatures reads the blocks after an image of the given length.
func readSignatures(r io.ReaderAt, length, limit int64, keys []Key) ([]Signature, error) {
	sector := signatureSector(length)
	n := min(maxSignatureRead, max(0, limit-sector)) / signatureBlock * signatureBlock
	if n == 0 {
		return nil, nil
	}
	blocks := make([]byte, n)
	if err := readAt(r, blocks, sector); err != nil {
		return nil, err
	}
	var all []Signature
	for ; len(blocks) > 0 && blocks[0] == signatureMagic; blocks = blocks[signatureBlock:] {
		s, err := readSignature(r, sector, blocks[:signatureBlock], keys)
		if err != nil {
			return nil, err
		}
		all = append(all, s)
	}
	return all, nil
}

func readSignature(r io.ReaderAt, signed int64, block []byte, keys []Key) (Signature, error) {
	key, ok := blockKey(block)
	if !ok {
		return Signature{Problem: SignatureUnknown}, nil
	}
	s := Signature{Scheme: key.scheme, KeyDigest: key.digest()}
	sum, err := signedDigest(r, signed, key)
	if err != nil {
		return s, err
	}
	switch {
	case crc32.ChecksumIEEE(block[:signatureCRC]) != binary.LittleEndian.Uint32(block[signatureCRC:]):
		s.Problem = SignatureCRC
	case string(block[signatureDigest:][:len(sum)]) != string(sum):
		s.Problem = SignatureOtherImage
	case !key.verify(sum, block):
		s.Problem = SignatureWrong
	default:
		s.Valid, s.Trusted = true, trusted(keys, s.KeyDigest)
	}
	return s, nil
}

func signedDigest(r io.ReaderAt, signed int64, key rawKey) ([]byte, error) {
	if key.scheme == schemeP384 {
		return digest(r, signed, sha512.New384())
	}
	return digest(r, signed, sha256.New())
}

// A rawKey is a public key in the form of a signature block and the fuses.
type rawKey struct {
	scheme string
	bytes  []byte
}

func (k rawKey) digest() string {
	sum := sha256.Sum256(k.bytes)
	return hex.EncodeToString(sum[:])
}

// blockKey returns the public key of a signature block.
func blockKey(block []byte) (rawKey, bool) {
	switch block[1] {
	case versionRSA:
		return rawKey{schemeRSA, block[signatureKey:][:rsaKeySize]}, true
	case versionECDSA:
		at := signatureKey
		if block[2] == ecdsaWithSHA384 {
			at = signatureKey384
		}
		c, ok := curveByID(block[at])
		if !ok || (c.scheme == schemeP384) != (at == signatureKey384) {
			return rawKey{}, false
		}
		return rawKey{c.scheme, block[at:][:1+2*c.field]}, true
	}
	return rawKey{}, false
}

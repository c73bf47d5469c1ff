package espimage

import (
	"crypto/ecdsa"
	"crypto/rsa"
	"crypto/x509"
	"encoding/binary"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"slices"
	"strings"
)

// A Key is a trusted public key for signatures.
type Key struct {
	Scheme string // see [Signature.Scheme]
	Digest string // see [Signature.KeyDigest]
}

func trusted(keys []Key, digest string) bool {
	return slices.ContainsFunc(keys, func(k Key) bool { return k.Digest == digest })
}

// ParseKeys parses public keys in PEM, as `espsecure extract-public-key` writes them: RSA of
// 3072 bits, or ECDSA on P-256, P-192 or P-384.
func ParseKeys(text []byte) ([]Key, error) {
	var keys []Key
	for {
		block, rest := pem.Decode(text)
		if block == nil {
			break
		}
		text = rest
		raw, err := parseKey(block)
		if err != nil {
			return nil, fmt.Errorf("key %d: %w", len(keys)+1, err)
		}
		keys = append(keys, Key{raw.scheme, raw.digest()})
	}
	if len(keys) == 0 {
		return nil, errors.New("no PEM block found; a public key begins with -----BEGIN PUBLIC KEY-----")
	}
	return keys, nil
}

func parseKey(block *pem.Block) (rawKey, error) {
	switch {
	case strings.Contains(block.Type, "PRIVATE"):
		return rawKey{}, errors.New("this is a private key, which fleetd must not have; give it the public key, as espsecure extract-public-key writes it")
	case block.Type == "RSA PUBLIC KEY":
		pub, err := x509.ParsePKCS1PublicKey(block.Bytes)
		if err != nil {
			return rawKey{}, err
		}
		return rsaKey(pub)
	case block.Type != "PUBLIC KEY":
		return rawKey{}, fmt.Errorf("a %q is not a public key", block.Type)
	}
	if raw, ok := parseP192(block.Bytes); ok {
		return raw, nil
	}
	pub, err := x509.ParsePKIXPublicKey(block.Bytes)
	if err != nil {
		return rawKey{}, err
	}
	switch pub := pub.(type) {
	case *rsa.PublicKey:
		return rsaKey(pub)
	case *ecdsa.PublicKey:
		return ecdsaKey(pub)
	}
	return rawKey{}, fmt.Errorf("keys of type %T cannot sign firmware; use RSA-3072 or ECDSA", pub)
}

// rsaKey encodes a key as in a signature block, together with R^2 mod n and -1/n mod 2^32,
// which the chip's multiplier needs.
func rsaKey(pub *rsa.PublicKey) (rawKey, error) {
	if pub.N.BitLen() != 8*rsaBytes {
		return rawKey{}, fmt.Errorf("the RSA key has %d bits; Secure Boot v2 requires 3072", pub.N.BitLen())
	}
	if pub.N.Bit(0) == 0 || pub.E < 3 || pub.E > 1<<31-1 {
		return rawKey{}, errors.New("invalid RSA key")
	}
	word := big.NewInt(1 << 32)
	inverse := new(big.Int).ModInverse(pub.N, word)
	rinv := new(big.Int).Lsh(big.NewInt(1), 2*8*rsaBytes)
	b := make([]byte, 0, rsaKeySize)
	b = append(b, little(pub.N, rsaBytes)...)
	b = binary.LittleEndian.AppendUint32(b, uint32(pub.E))
	b = append(b, little(rinv.Mod(rinv, pub.N), rsaBytes)...)
	b = binary.LittleEndian.AppendUint32(b, uint32(new(big.Int).Sub(word, inverse).Uint64()))
	return rawKey{schemeRSA, b}, nil
}

func ecdsaKey(pub *ecdsa.PublicKey) (rawKey, error) {
	for _, c := range curves {
		if c.std == pub.Curve {
			point, err := pub.Bytes() // 4, x, y
			if err != nil {
				return rawKey{}, err
			}
			return c.key(point[1:]), nil
		}
	}
	return rawKey{}, fmt.Errorf("the key is on the curve %s; Secure Boot v2 supports P-256, P-192 and P-384",
		pub.Params().Name)
}

// key encodes a point, x and y big-endian, as in a signature block.
func (c curve) key(point []byte) rawKey {
	b := make([]byte, 1+2*c.field)
	b[0] = c.id
	copy(b[1:], reversed(point[:c.size]))
	copy(b[1+c.size:], reversed(point[c.size:]))
	return rawKey{c.scheme, b}
}

func little(n *big.Int, size int) []byte { return reversed(n.FillBytes(make([]byte, size))) }

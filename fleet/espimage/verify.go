package espimage

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rsa"
	"encoding/asn1"
	"encoding/binary"
	"math/big"
	"slices"
)

// Names of the signature schemes.
const (
	schemeRSA  = "rsa3072"
	schemeP192 = "ecdsa192"
	schemeP256 = "ecdsa256"
	schemeP384 = "ecdsa384"
)

// A curve is an elliptic curve of Secure Boot v2.
type curve struct {
	id     byte
	scheme string
	size   int            // bytes of a coordinate
	field  int            // stored bytes of a coordinate: P-192 is padded to P-256's size
	std    elliptic.Curve // nil for P-192, which the standard library lacks
}

var curves = []curve{
	{1, schemeP192, 24, 32, nil},
	{2, schemeP256, 32, 32, elliptic.P256()},
	{3, schemeP384, 48, 48, elliptic.P384()},
}

func curveByID(id byte) (curve, bool) {
	i := slices.IndexFunc(curves, func(c curve) bool { return c.id == id })
	if i < 0 {
		return curve{}, false
	}
	return curves[i], true
}

// verify reports whether the signature of a block is valid for the digest.
func (k rawKey) verify(sum, block []byte) bool {
	if k.scheme == schemeRSA {
		return verifyRSA(k.bytes, sum, block[signatureKey+rsaKeySize:][:rsaBytes])
	}
	c, _ := curveByID(k.bytes[0])
	at := signatureKey
	if c.scheme == schemeP384 {
		at = signatureKey384
	}
	signature := block[at+1+2*c.field:]
	return c.verify(k.bytes[1:], sum, number(signature[:c.size]), number(signature[c.size:][:c.size]))
}

func verifyRSA(key, sum, signature []byte) bool {
	n, e := number(key[:rsaBytes]), binary.LittleEndian.Uint32(key[rsaBytes:])
	if n.BitLen() != 8*rsaBytes || n.Bit(0) == 0 || e < 3 || e > 1<<31-1 || e%2 == 0 {
		return false
	}
	pub := &rsa.PublicKey{N: n, E: int(e)}
	return rsa.VerifyPSS(pub, crypto.SHA256, sum, reversed(signature), &rsa.PSSOptions{SaltLength: 32}) == nil
}

// verify checks a signature. The point has the form of a block: x, then y, little-endian.
func (c curve) verify(point, sum []byte, r, s *big.Int) bool {
	x, y := point[:c.size], point[c.size:][:c.size]
	if c.std == nil {
		return p192Verify(number(x), number(y), sum, r, s)
	}
	pub, err := ecdsa.ParseUncompressedPublicKey(c.std, slices.Concat([]byte{4}, reversed(x), reversed(y)))
	if err != nil {
		return false
	}
	der, err := asn1.Marshal(struct{ R, S *big.Int }{r, s})
	return err == nil && ecdsa.VerifyASN1(pub, sum, der)
}

// number decodes a little-endian number.
func number(b []byte) *big.Int { return new(big.Int).SetBytes(reversed(b)) }

func reversed(b []byte) []byte {
	out := slices.Clone(b)
	slices.Reverse(out)
	return out
}

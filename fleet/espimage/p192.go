package espimage

import (
	"crypto/x509/pkix"
	"encoding/asn1"
	"math/big"
)

// NIST P-192. The standard library lacks it, but some supported chips verify Secure Boot v2
// with it: the ESP32-C2 and C61 accept ECDSA on P-256 or P-192 and no RSA; the C5, C6, H2,
// H21 and P4 accept it as well as RSA-3072 (ESP-IDF, docs/en/security/secure-boot-v2.rst,
// IDF_TARGET_SBV2_KEY). Without this file, fleetd could not check their signatures.
//
// The computations use only public values, so their time may depend on them.
var (
	p192P  = hexNumber("fffffffffffffffffffffffffffffffeffffffffffffffff")
	p192N  = hexNumber("ffffffffffffffffffffffff99def836146bc9b1b4d22831")
	p192B  = hexNumber("64210519e59c80e70fa7e9ab72243049feb8deecc146b9b1")
	p192Gx = hexNumber("188da80eb03090f67cbf20eb43a18800f4ff0afd82ff1012")
	p192Gy = hexNumber("07192b95ffc8da78631011ed6b24cdd573f977a11e794811")
)

func hexNumber(s string) *big.Int {
	n, _ := new(big.Int).SetString(s, 16)
	return n
}

// A point on the curve; nil is the point at infinity.
type p192Point struct{ x, y *big.Int }

func p192Verify(x, y *big.Int, sum []byte, r, s *big.Int) bool {
	if !onP192(x, y) || !inP192Order(r) || !inP192Order(s) {
		return false
	}
	e := new(big.Int).SetBytes(sum[:24])
	w := new(big.Int).ModInverse(s, p192N)
	u1 := mod(e.Mul(e, w), p192N)
	u2 := mod(w.Mul(r, w), p192N)
	p := (&p192Point{p192Gx, p192Gy}).times(u1).plus((&p192Point{x, y}).times(u2))
	return p != nil && new(big.Int).Mod(p.x, p192N).Cmp(r) == 0
}

func inP192Order(k *big.Int) bool { return k.Sign() > 0 && k.Cmp(p192N) < 0 }

// onP192 reports whether y^2 = x^3 - 3x + b.
func onP192(x, y *big.Int) bool {
	if x.Cmp(p192P) >= 0 || y.Cmp(p192P) >= 0 {
		return false
	}
	right := new(big.Int).Mul(x, x)
	right.Sub(right, big.NewInt(3))
	right.Mul(right, x).Add(right, p192B)
	return mod(new(big.Int).Mul(y, y), p192P).Cmp(mod(right, p192P)) == 0
}

func mod(n, m *big.Int) *big.Int { return n.Mod(n, m) }

func (p *p192Point) times(k *big.Int) *p192Point {
	var sum *p192Point
	for i := k.BitLen() - 1; i >= 0; i-- {
		sum = sum.plus(sum)
		if k.Bit(i) == 1 {
			sum = sum.plus(p)
		}
	}
	return sum
}

func (p *p192Point) plus(q *p192Point) *p192Point {
	if p == nil {
		return q
	}
	if q == nil {
		return p
	}
	num, den := new(big.Int), new(big.Int)
	if p.x.Cmp(q.x) != 0 {
		num.Sub(q.y, p.y)
		den.Sub(q.x, p.x)
	} else if p.y.Cmp(q.y) == 0 && p.y.Sign() != 0 {
		num.Mul(p.x, p.x).Sub(num, big.NewInt(1)).Mul(num, big.NewInt(3)) // a is -3
		den.Lsh(p.y, 1)
	} else {
		return nil
	}
	slope := mod(num.Mul(num, den.ModInverse(mod(den, p192P), p192P)), p192P)
	x := new(big.Int).Mul(slope, slope)
	mod(x.Sub(x, p.x).Sub(x, q.x), p192P)
	y := new(big.Int).Sub(p.x, x)
	mod(y.Mul(y, slope).Sub(y, p.y), p192P)
	return &p192Point{x, y}
}

var (
	oidECDSA = asn1.ObjectIdentifier{1, 2, 840, 10045, 2, 1}
	oidP192  = asn1.ObjectIdentifier{1, 2, 840, 10045, 3, 1, 1}
)

// parseP192 parses a public key on this curve, which crypto/x509 does not support.
func parseP192(der []byte) (rawKey, bool) {
	var info struct {
		Algorithm pkix.AlgorithmIdentifier
		Point     asn1.BitString
	}
	if rest, err := asn1.Unmarshal(der, &info); err != nil || len(rest) > 0 {
		return rawKey{}, false
	}
	var named asn1.ObjectIdentifier
	if _, err := asn1.Unmarshal(info.Algorithm.Parameters.FullBytes, &named); err != nil ||
		!info.Algorithm.Algorithm.Equal(oidECDSA) || !named.Equal(oidP192) {
		return rawKey{}, false
	}
	point := info.Point.Bytes
	if len(point) != 1+2*24 || point[0] != 4 || !onP192(new(big.Int).SetBytes(point[1:25]),
		new(big.Int).SetBytes(point[25:])) {
		return rawKey{}, false
	}
	return curves[0].key(point[1:]), true
}

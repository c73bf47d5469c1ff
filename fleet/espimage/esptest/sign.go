package esptest

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"encoding/asn1"
	"encoding/binary"
	"hash/crc32"
	"math/big"
	"slices"
)

// Sign appends a Secure Boot v2 signature sector with a block for each key: an
// RSA key of 3072 bits, or an ECDSA key on P-256.
func Sign(app []byte, keys ...crypto.Signer) []byte {
	b := slices.Clone(app)
	b = append(b, bytes.Repeat([]byte{0xFF}, -len(b)&4095)...)
	digest := sha256.Sum256(b)
	var sector []byte
	for _, key := range keys {
		sector = append(sector, block(digest[:], key)...)
	}
	sector = append(sector, bytes.Repeat([]byte{0xFF}, 4096-len(sector))...)
	return append(b, sector...)
}

func block(digest []byte, key crypto.Signer) []byte {
	b := make([]byte, 1216)
	b[0] = 0xE7
	copy(b[4:36], digest)
	switch key := key.(type) {
	case *rsa.PrivateKey:
		b[1] = 2
		signRSA(b[36:], digest, key)
	case *ecdsa.PrivateKey:
		b[1] = 3
		signECDSA(b[36:], digest, key)
	default:
		panic("esptest: sign with RSA-3072 or P-256")
	}
	binary.LittleEndian.PutUint32(b[1196:], crc32.ChecksumIEEE(b[:1196]))
	return b
}

func signRSA(b, digest []byte, key *rsa.PrivateKey) {
	n, word := key.N, big.NewInt(1<<32)
	inverse := new(big.Int).ModInverse(n, word)
	square := new(big.Int).Exp(big.NewInt(2), big.NewInt(2*3072), n)
	putLittle(b[0:384], n)
	putLittle(b[384:388], big.NewInt(int64(key.E)))
	putLittle(b[388:772], square)
	putLittle(b[772:776], inverse.Sub(word, inverse))
	signature, err := rsa.SignPSS(rand.Reader, key, crypto.SHA256, digest, &rsa.PSSOptions{SaltLength: 32})
	if err != nil {
		panic(err)
	}
	putLittle(b[776:1160], new(big.Int).SetBytes(signature))
}

func signECDSA(b, digest []byte, key *ecdsa.PrivateKey) {
	b[0] = 2 // P-256
	point, err := key.PublicKey.Bytes()
	if err != nil {
		panic(err)
	}
	putLittle(b[1:33], new(big.Int).SetBytes(point[1:33]))
	putLittle(b[33:65], new(big.Int).SetBytes(point[33:65]))
	der, err := ecdsa.SignASN1(rand.Reader, key, digest)
	if err != nil {
		panic(err)
	}
	var sig struct{ R, S *big.Int }
	if _, err := asn1.Unmarshal(der, &sig); err != nil {
		panic(err)
	}
	putLittle(b[65:97], sig.R)
	putLittle(b[97:129], sig.S)
}

func putLittle(b []byte, n *big.Int) {
	n.FillBytes(b)
	slices.Reverse(b)
}

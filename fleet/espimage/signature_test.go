package espimage_test

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/binary"
	"encoding/json"
	"encoding/pem"
	"hash/crc32"
	"os"
	"slices"
	"strings"
	"testing"

	"fleetd/fleet/espimage"
	"fleetd/fleet/espimage/esptest"
)

// signedBlocks returns signature blocks made by another implementation, over the first
// vector.
func signedBlocks(t testing.TB) (blocks []struct {
	Scheme    string
	PublicKey string `json:"public_key"`
	KeyDigest string `json:"key_digest"`
	Block     []byte `json:"block_base64"`
}) {
	t.Helper()
	raw, err := os.ReadFile("testdata/signatures.json")
	if err != nil {
		t.Fatal(err)
	}
	file := struct{ Blocks any }{&blocks}
	if err := json.Unmarshal(raw, &file); err != nil {
		t.Fatal(err)
	}
	return blocks
}

// behind appends blocks to an image at the position of its signature sector.
func behind(app []byte, blocks ...[]byte) []byte {
	b := append(slices.Clone(app), slices.Repeat([]byte{0xFF}, -len(app)&4095)...)
	sector := slices.Repeat([]byte{0xFF}, 4096)
	copy(sector, slices.Concat(blocks...))
	return append(b, sector...)
}

func TestForeignSignatures(t *testing.T) {
	app := vectors(t)[0].Image
	blocks := signedBlocks(t)
	if len(blocks) != 4 {
		t.Fatalf("%d blocks", len(blocks))
	}
	for _, tt := range blocks {
		t.Run(tt.Scheme, func(t *testing.T) {
			keys, err := espimage.ParseKeys([]byte(tt.PublicKey))
			if err != nil {
				t.Fatal(err)
			}
			want := espimage.Signature{Scheme: tt.Scheme, KeyDigest: tt.KeyDigest, Valid: true, Trusted: true}
			if keys[0] != (espimage.Key{Scheme: tt.Scheme, Digest: tt.KeyDigest}) {
				t.Errorf("key %+v", keys[0])
			}
			file := behind(app, tt.Block)
			if got := signatures(t, file, keys...); len(got) != 1 || got[0] != want {
				t.Errorf("%+v, want %+v", got, want)
			}
			want.Trusted = false
			if got := signatures(t, file); len(got) != 1 || got[0] != want {
				t.Errorf("without keys: %+v", got)
			}
			tamper(t, app, tt.Block, keys)
		})
	}
}

func signatures(t *testing.T, file []byte, keys ...espimage.Key) []espimage.Signature {
	t.Helper()
	img, err := parse(file, keys...)
	if err != nil {
		t.Fatal(err)
	}
	return img.Signatures
}

// tamper changes one byte at a time, of the signed data or of the block.
func tamper(t *testing.T, app, block []byte, keys []espimage.Key) {
	t.Helper()
	padding := behind(app, block)
	padding[4095] ^= 1
	if s := signatures(t, padding, keys...)[0]; s.Valid || s.Problem != espimage.SignatureOtherImage {
		t.Errorf("padding changed: %+v", s)
	}
	for i := 1; i < 1200; i += 11 {
		bad := slices.Clone(block)
		bad[i] ^= 4
		for _, s := range signatures(t, behind(app, bad), keys...) {
			if s.Valid || s.Trusted || s.Problem == "" {
				t.Errorf("byte %d changed: %+v", i, s)
			}
		}
		// A forger repairs the CRC. Then only meaningless bytes may change unnoticed.
		binary.LittleEndian.PutUint32(bad[1196:], crc32.ChecksumIEEE(bad[:1196]))
		for _, s := range signatures(t, behind(app, bad), keys...) {
			if s.Trusted && i < 101 && i > 3 {
				t.Errorf("byte %d changed and CRC mended: %+v", i, s)
			}
		}
	}
}

func TestThreeSignatures(t *testing.T) {
	app := vectors(t)[0].Image
	blocks := signedBlocks(t)
	broken := slices.Clone(blocks[0].Block)
	broken[500] ^= 1
	keys, err := espimage.ParseKeys([]byte(blocks[2].PublicKey))
	if err != nil {
		t.Fatal(err)
	}
	got := signatures(t, behind(app, blocks[0].Block, broken, blocks[2].Block), keys...)
	if len(got) != 3 || !got[0].Valid || got[0].Trusted || got[1].Valid || !got[2].Trusted {
		t.Errorf("%+v", got)
	}
}

func TestUnknownSignatureKind(t *testing.T) {
	block := slices.Clone(signedBlocks(t)[2].Block)
	for _, at := range []int{1, 2, 36} {
		bad := slices.Clone(block)
		bad[at] = 9
		if s := signatures(t, behind(vectors(t)[0].Image, bad))[0]; s.Valid || s.Scheme != "" && at != 2 || s.Problem == "" {
			t.Errorf("byte %d: %+v", at, s)
		}
	}
}

func TestBuilderSigns(t *testing.T) {
	r, err := rsa.GenerateKey(rand.Reader, 3072)
	if err != nil {
		t.Fatal(err)
	}
	e, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	keys, err := espimage.ParseKeys(slices.Concat(publicPEM(t, r), publicPEM(t, e)))
	if err != nil {
		t.Fatal(err)
	}
	file := esptest.Sign(esptest.App{Size: 5000}.Bytes(), r, e)
	for i, s := range signatures(t, file, keys...) {
		if !s.Trusted || s.KeyDigest != keys[i].Digest {
			t.Errorf("%+v", s)
		}
	}
}

func publicPEM(t *testing.T, key crypto.Signer) []byte {
	t.Helper()
	der, err := x509.MarshalPKIXPublicKey(key.Public())
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der})
}

func TestParseKeysRefuses(t *testing.T) {
	small, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	p521, err := ecdsa.GenerateKey(elliptic.P521(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	private, err := x509.MarshalPKCS8PrivateKey(p521)
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct{ name, text, message string }{
		{"nothing", "", "PEM"},
		{"text", "hello", "PEM"},
		{"private", string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: private})), "private key"},
		{"2048 bits", string(publicPEM(t, small)), "3072"},
		{"P-521", string(publicPEM(t, p521)), "P-521"},
		{"certificate", string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: []byte{1}})), "CERTIFICATE"},
		{"rubbish", string(pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: []byte{1, 2}})), "key 1"},
	} {
		if _, err := espimage.ParseKeys([]byte(tt.text)); err == nil || !strings.Contains(err.Error(), tt.message) {
			t.Errorf("%s: %v; want text with %s", tt.name, err, tt.message)
		}
	}
}

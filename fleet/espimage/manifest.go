package espimage

import (
	"crypto/ed25519"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"time"
)

// MaxSignedManifest is the maximum size of a .manifest file in bytes.
const MaxSignedManifest = 4 << 10

// maxManifest is the longest manifest, in bytes, that the included firmware accepts.
const maxManifest = 1024

// A Manifest is a statement about an image: its signer declares that these bytes may run on
// these devices.
type Manifest struct {
	Project       string `json:"project"`
	Version       string `json:"version"`
	Chip          int64  `json:"chip"` // chip_id of the image's header
	Size          int64  `json:"size"` // bytes
	SHA256        string `json:"sha256"`
	SecureVersion int64  `json:"secure_version"`
	NotBefore     int64  `json:"not_before,omitempty"` // Unix milliseconds; devices do not install the image earlier
	// RollbackFrom is the version that a device may leave for this older one. Without it, a
	// device installs no version older than its current one.
	RollbackFrom string `json:"rollback_from,omitempty"`
}

// A SignedManifest is the content of a .manifest file. The signature covers the exact text,
// so the text is stored unchanged.
type SignedManifest struct {
	Text      string `json:"manifest"`
	Signature string `json:"signature"`     // Ed25519, base64
	Key       string `json:"key,omitempty"` // claimed public key, hex
}

// ManifestOf returns the manifest of the image in the first size bytes of r.
func ManifestOf(r io.ReaderAt, size int64) (Manifest, error) {
	img, err := Parse(r, size)
	if err != nil {
		return Manifest{}, err
	}
	sum := sha256.New()
	if _, err := io.Copy(sum, io.NewSectionReader(r, img.Offset, img.Size)); err != nil {
		return Manifest{}, err
	}
	d := img.Descriptor
	return Manifest{Project: d.Project, Version: d.Version, Chip: int64(img.Header.ChipID), Size: img.Size,
		SHA256: hex.EncodeToString(sum.Sum(nil)), SecureVersion: int64(d.SecureVersion)}, nil
}

// Sign signs the manifest.
func (m Manifest) Sign(key ed25519.PrivateKey) (SignedManifest, error) {
	text, err := json.Marshal(m)
	if err != nil {
		return SignedManifest{}, err
	}
	if len(text) > maxManifest {
		return SignedManifest{}, fmt.Errorf("the manifest has %d bytes; devices accept at most %d", len(text), maxManifest)
	}
	return SignedManifest{string(text), base64.StdEncoding.EncodeToString(ed25519.Sign(key, text)),
		hex.EncodeToString(key.Public().(ed25519.PublicKey))}, nil
}

// ReadSignedManifest parses a .manifest file and the manifest in it, within the limits of the
// devices. Its error is a [*Fault].
func ReadSignedManifest(file []byte) (SignedManifest, Manifest, error) {
	var s SignedManifest
	var m Manifest
	if len(file) > MaxSignedManifest {
		return s, m, newFault(ReasonManifest, "file_size", "size", len(file), "most", MaxSignedManifest)
	}
	if err := json.Unmarshal(file, &s); err != nil || s.Text == "" {
		return s, m, newFault(ReasonManifest, "not_one")
	}
	m, err := s.Read()
	return s, m, err
}

// Read parses the signed manifest, within the limits of the devices. Its error is a [*Fault].
// It does not check the signature; see [SignedManifest.Holds].
func (s SignedManifest) Read() (m Manifest, err error) {
	if len(s.Text) > maxManifest {
		return m, newFault(ReasonManifest, "size", "size", len(s.Text), "most", maxManifest)
	}
	if _, err := s.signature(); err != nil {
		return m, err
	}
	if err := json.Unmarshal([]byte(s.Text), &m); err != nil {
		return m, newFault(ReasonManifest, "syntax", "detail", err.Error())
	}
	return m, m.check()
}

func (m Manifest) check() error {
	if sum, err := hex.DecodeString(m.SHA256); err != nil || len(sum) != sha256.Size || m.Size <= 0 || m.Chip < 0 {
		return newFault(ReasonManifest, "lacks")
	}
	return nil
}

func (s SignedManifest) signature() ([]byte, error) {
	sig, err := base64.StdEncoding.Strict().DecodeString(s.Signature)
	if err != nil || len(sig) != ed25519.SignatureSize {
		return nil, newFault(ReasonManifest, "signature", "size", ed25519.SignatureSize)
	}
	return sig, nil
}

// Holds reports whether the signature was made with the key.
func (s SignedManifest) Holds(key ed25519.PublicKey) bool {
	sig, err := s.signature()
	return err == nil && len(key) == ed25519.PublicKeySize && ed25519.Verify(key, []byte(s.Text), sig)
}

// NamedKey returns the key that the file names; nil if it names none.
func (s SignedManifest) NamedKey() ed25519.PublicKey {
	key, err := hex.DecodeString(s.Key)
	if err != nil || len(key) != ed25519.PublicKeySize {
		return nil
	}
	return key
}

// ManifestBegins returns the earliest time at which devices install the image, from the text
// of its manifest; zero means at once.
func ManifestBegins(text string) time.Time {
	var m Manifest
	if json.Unmarshal([]byte(text), &m) != nil || m.NotBefore <= 0 {
		return time.Time{}
	}
	return time.UnixMilli(m.NotBefore).UTC()
}

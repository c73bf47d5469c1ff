package client

import (
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"time"

	"fleetd/cmd/fleetd/terminal"
	"fleetd/fleet/espimage"
	"fleetd/fleet/firmware"
	"fleetd/web/i18n"
)

// manifestSuffix is the suffix that turns the path of an image into that of its
// manifest.
const manifestSuffix = ".manifest"

type imageSign struct {
	File         string    `arg:"" help:"The app image or merged-binary.bin to sign." type:"existingfile"`
	Key          string    `help:"Private key (PEM, Ed25519), as created by fleetd image key." required:"" type:"existingfile" placeholder:"FILE"`
	NotBefore    time.Time `help:"Earliest time at which devices accept the image (2026-12-24T06:00:00Z)." placeholder:"TIME"`
	RollbackFrom string    `help:"Allow devices that run this version to downgrade to the image's older version." placeholder:"VERSION"`
	Out          string    `help:"Path of the manifest. Default: the image's path with .manifest appended." placeholder:"FILE"`
}

func (c *imageSign) Run(context.Context) error {
	text, err := readSmall(c.Key)
	if err != nil {
		return terminal.UsageError{Err: err}
	}
	key, err := espimage.ParseReleaseSecret(text)
	if err != nil {
		return fmt.Errorf("--key %s: %w", c.Key, err)
	}
	m, err := manifestOf(c.File)
	if err != nil {
		return err
	}
	if !c.NotBefore.IsZero() {
		m.NotBefore = c.NotBefore.UnixMilli()
	}
	m.RollbackFrom = c.RollbackFrom
	signed, err := m.Sign(key)
	if err != nil {
		return err
	}
	file, err := json.MarshalIndent(signed, "", "  ")
	if err != nil {
		return err
	}
	if c.Out == "" {
		c.Out = c.File + manifestSuffix
	}
	if err := os.WriteFile(c.Out, append(file, '\n'), 0o644); err != nil {
		return err
	}
	fmt.Printf("%s: %s %s, signed with the key %s\n", c.Out, terminal.Printable(m.Project), terminal.Printable(m.Version), signed.Key)
	return nil
}

func manifestOf(name string) (espimage.Manifest, error) {
	file, err := os.Open(name)
	if err != nil {
		return espimage.Manifest{}, err
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil {
		return espimage.Manifest{}, err
	}
	m, err := espimage.ManifestOf(file, info.Size())
	if fault, ok := errors.AsType[*espimage.Fault](err); ok {
		err = errors.New(i18n.Detail("error.code.", firmware.FaultReason(fault)))
	}
	if err != nil {
		return espimage.Manifest{}, fmt.Errorf("%s: %w", name, err)
	}
	return m, nil
}

type imageKey struct {
	File string `arg:"" help:"Private key (PEM); created if the file does not exist. The public key is written next to it."`
}

// Run creates a key pair, or prints the public key of an existing one.
func (c *imageKey) Run(context.Context) error {
	public := publicName(c.File)
	private, err := readSmall(c.File)
	if errors.Is(err, fs.ErrNotExist) {
		if private, err = makeKeys(c.File, public); err == nil {
			fmt.Printf("%s: private key; keep it offline and never on the server\n%s: its public key\n", c.File, public)
		}
	}
	if err != nil {
		return err
	}
	key, err := espimage.ParseReleaseSecret(private)
	if err != nil {
		return fmt.Errorf("%s: %w", c.File, err)
	}
	number := hex.EncodeToString(key[32:]) // the public key follows the private one
	fmt.Printf("\nfleetd serve        --manifest-key %s\nfirmware (Kconfig)  CONFIG_FLEET_SIGNED_RELEASES=y CONFIG_FLEET_RELEASE_KEY=\"%s\"\nvirtual device      --signed-by %s\n", public, number, number)
	return nil
}

func publicName(private string) string {
	ext := filepath.Ext(private)
	return strings.TrimSuffix(private, ext) + ".pub" + ext
}

// makeKeys writes a new pair of keys. It never overwrites files.
func makeKeys(privateName, publicName string) ([]byte, error) {
	private, public, err := espimage.NewReleaseKey()
	if err != nil {
		return nil, err
	}
	if err := writeNew(privateName, private, 0o600); err != nil {
		return nil, err
	}
	return private, writeNew(publicName, public, 0o644)
}

func writeNew(name string, data []byte, mode os.FileMode) error {
	f, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, mode)
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	return errors.Join(err, f.Close())
}

// manifest reads the manifest of the image to upload: the named file, or the one
// next to the image. The manifest must belong to that image.
func (c *imagePush) manifest() (json.RawMessage, string, error) {
	name := c.Manifest
	if name == "" {
		name = c.File + manifestSuffix
		if _, err := os.Stat(name); errors.Is(err, fs.ErrNotExist) {
			return nil, "", nil
		}
	}
	file, err := readSmall(name)
	if err != nil {
		return nil, "", err
	}
	_, said, err := espimage.ReadSignedManifest(file)
	if err != nil {
		return nil, "", fmt.Errorf("%s: %w", name, err)
	}
	is, err := manifestOf(c.File)
	if err == nil && is.SHA256 != said.SHA256 {
		err = fmt.Errorf("%s belongs to another image: %s was changed after it was signed; sign it again", name, c.File)
	}
	return file, is.SHA256, err
}

// pushManifest uploads the manifest of the image just uploaded.
func (c *imagePush) pushManifest(ctx context.Context, manifest json.RawMessage, sha256 string) (json.RawMessage,
	error) {
	answer, err := c.do(ctx, http.MethodPut, "/images/"+url.PathEscape(sha256)+"/manifest", manifest)
	if err != nil {
		return nil, fmt.Errorf("the image is stored, but its manifest is not: %w", err)
	}
	return answer, nil
}

// maxSmall bounds the size of a key or a manifest, in bytes. Both are far
// smaller.
const maxSmall = 64 << 10

// readSmall reads a key or a manifest, which may come from a pipe.
func readSmall(name string) ([]byte, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, maxSmall+1))
	if err == nil && len(text) > maxSmall {
		err = fmt.Errorf("%s is larger than %d KiB: it is neither a key nor a manifest", name, maxSmall>>10)
	}
	return text, err
}

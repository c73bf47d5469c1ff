package client

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"time"

	"golang.org/x/term"

	"fleetd/cmd/fleetd/terminal"
	"fleetd/fleet/firmware"
	"fleetd/web/i18n"
)

type ImageCommand struct {
	Push   imagePush   `cmd:"" help:"Upload a firmware image: the app image of a build, or its merged-binary.bin."`
	Sign   imageSign   `cmd:"" help:"Sign an image for devices that accept only signed images; needs no server."`
	Key    imageKey    `cmd:"" help:"Create a key pair for signing images, or show its public key; needs no server."`
	List   imageList   `cmd:"" help:"List firmware images."`
	Show   imageShow   `cmd:"" help:"Show one firmware image."`
	Revoke imageRevoke `cmd:"" help:"Revoke an image: it is never served again."`
	Delete imageDelete `cmd:"" help:"Delete an image that no release or campaign uses."`
}

func (i Image) row() []string {
	state := "ready"
	switch {
	case i.RevokedAt != nil:
		state = "revoked"
	case i.Withheld != "":
		state = "withheld: " + i.Withheld
	}
	return []string{i.SHA256, i.Version, i.Chip, i.Board, kib(i.Size), state}
}

const imageHeading = "SHA256 VERSION CHIP BOARD SIZE STATE"

func kib(n int64) string { return strconv.FormatInt((n+1023)/1024, 10) + " KiB" }

type imagePush struct {
	clientFlags
	File  string `arg:"" optional:"" help:"Image file. Default with --layout: the app named in its flasher_args.json." type:"existingfile"`
	Board string `help:"Board that the image is for, as its devices report it. Default: every board with the same chip." placeholder:"BOARD"`
	Notes string `help:"Notes on the image."`

	Layout string `help:"Folder of the build, with flasher_args.json: also upload the other parts that a blank board needs." type:"existingdir" placeholder:"DIR"`

	Manifest string `help:"Signed manifest of the image. Default: the image's path with .manifest appended, if that file exists." type:"existingfile" placeholder:"FILE"`
}

func (c *imagePush) Run(ctx context.Context) error {
	files, err := c.buildFiles()
	if err != nil {
		return terminal.UsageError{Err: err}
	}
	file, err := os.Open(c.File)
	if err != nil {
		return terminal.UsageError{Err: err}
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil {
		return err
	}
	if info.Size() > firmware.MaxImageBytes {
		return fmt.Errorf("%s has %s: no board has more flash than %s", c.File, kib(info.Size()),
			kib(firmware.MaxImageBytes))
	}
	manifest, sha256, err := c.manifest()
	if err != nil {
		return err
	}
	answer, err := c.upload(ctx, file, info.Size())
	if err == nil && manifest != nil {
		answer, err = c.pushManifest(ctx, manifest, sha256)
	}
	if err == nil && c.Layout != "" {
		err = c.pushLayout(ctx, answer, files)
	}
	return showImage(&c.clientFlags, answer, err)
}

func (c *imagePush) upload(ctx context.Context, file io.Reader, size int64) (json.RawMessage, error) {
	params := url.Values{"file_name": {filepath.Base(c.File)}, "board": {c.Board}, "notes": {c.Notes}}
	req, err := c.request(ctx, http.MethodPost, "/images?"+params.Encode(), nil)
	if err != nil {
		return nil, err
	}
	body := &progressReader{r: file, size: size, show: c.human()}
	req.Body, req.ContentLength = io.NopCloser(body), size
	if size == 0 {
		req.Body = http.NoBody
	}
	req.Header.Set("Content-Type", "application/octet-stream")
	req.Header.Set("Expect", "100-continue") // the server can refuse before the bytes are sent
	defer body.done()
	return c.send(&http.Client{}, req)
}

// progressReader shows the progress of an upload on a terminal. If the server
// refuses early, net/http may still read from it after the answer: hence the
// lock.
type progressReader struct {
	r         io.Reader
	size, n   int64
	mu        sync.Mutex // guards show and displayed
	show      bool
	displayed time.Time
}

func (p *progressReader) Read(b []byte) (int, error) {
	n, err := p.r.Read(b)
	p.n += int64(n)
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.show && term.IsTerminal(int(os.Stderr.Fd())) && time.Since(p.displayed) > 100*time.Millisecond {
		p.displayed = time.Now()
		fmt.Fprintf(os.Stderr, "\r%s of %s, %d %%", kib(p.n), kib(p.size), p.n*100/max(p.size, 1))
	}
	return n, err
}

// done clears the line and stops the display.
func (p *progressReader) done() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.show = false
	if !p.displayed.IsZero() {
		fmt.Fprint(os.Stderr, "\r\033[K")
	}
}

// versionWarning returns the text of a code that a server sent. The server may
// be newer than this program.
func versionWarning(w VersionWarning) string {
	if key := "firmware." + w.Code; i18n.Has(key) {
		return i18n.Text(i18n.English, key, "part", w.Params.Part, "read", w.Params.Read)
	}
	return w.Code + " " + w.Params.Part
}

// showImage prints one image.
func showImage(c *clientFlags, answer json.RawMessage, err error) error {
	if err != nil {
		return err
	}
	if !c.human() {
		return terminal.JSON(answer)
	}
	var i Image
	if err := json.Unmarshal(answer, &i); err != nil {
		return err
	}
	if err := terminal.Table(imageHeading, [][]string{i.row()}); err != nil {
		return err
	}
	fmt.Printf("\n%s, project %s, IDF %s, build %s\n", terminal.Printable(i.FileName), terminal.Printable(i.Project),
		terminal.Printable(i.IDFVersion), terminal.Printable(i.ELFSHA256))
	if i.MergedBinary {
		fmt.Println("The app was extracted from a merged binary.")
	}
	for _, s := range i.Signatures {
		fmt.Printf("Signed with the key %s (valid: %t, known here: %t)\n", terminal.Printable(s.KeyDigest), s.Valid, s.Trusted)
	}
	if m := i.Manifest; m != nil {
		fmt.Printf("Manifest signed with the key %s (checked here: %t)\n", terminal.Printable(cmp.Or(m.Key, "of unknown number")),
			m.Checked)
	}
	for _, w := range i.Warnings {
		fmt.Printf("Warning: %s\n", terminal.Printable(versionWarning(w)))
	}
	if i.NotOfferable != "" {
		fmt.Println("Can only be pushed:", terminal.Printable(i.NotOfferable))
	}
	if i.RevokedAt != nil {
		fmt.Println("Revoked:", terminal.Printable(i.RevokeReason))
	}
	return nil
}

type imageList struct {
	clientFlags
	Chip    string `help:"List only images for this chip."`
	Board   string `help:"List only images for this board."`
	Version string `help:"List only images of this version."`
	Limit   int    `help:"Print at most this many." default:"1000"`
}

func (c *imageList) Run(ctx context.Context) error {
	items, err := c.all(ctx, "/images", url.Values{"chip": {c.Chip}, "board": {c.Board}, "version": {c.Version}}, c.Limit)
	if err != nil {
		return err
	}
	return listed(&c.clientFlags, items, imageHeading, Image.row)
}

// listed prints a list: as JSON, or as a table with a row for each item.
func listed[T any](c *clientFlags, items []json.RawMessage, heading string, row func(T) []string) error {
	if !c.human() {
		return terminal.JSON(items)
	}
	var rows [][]string
	for _, item := range items {
		var v T
		if err := json.Unmarshal(item, &v); err != nil {
			return err
		}
		rows = append(rows, row(v))
	}
	return terminal.Table(heading, rows)
}

type imageShow struct {
	clientFlags
	SHA256 string `arg:"" name:"sha256" help:"SHA-256 of the image."`
}

func (c *imageShow) Run(ctx context.Context) error {
	answer, err := c.do(ctx, http.MethodGet, "/images/"+url.PathEscape(c.SHA256), nil)
	return showImage(&c.clientFlags, answer, err)
}

type imageRevoke struct {
	clientFlags
	SHA256 string `arg:"" name:"sha256" help:"SHA-256 of the image."`
	Reason string `arg:"" help:"Reason."`
}

func (c *imageRevoke) Run(ctx context.Context) error {
	if c.Reason == "" {
		return terminal.UsageError{Err: errors.New("give a reason: fleetd image revoke SHA256 REASON")}
	}
	answer, err := c.do(ctx, http.MethodPost, "/images/"+url.PathEscape(c.SHA256)+"/revoke",
		RevokeImageInputBody{Reason: c.Reason})
	return showImage(&c.clientFlags, answer, err)
}

type imageDelete struct {
	clientFlags
	SHA256 string `arg:"" name:"sha256" help:"SHA-256 of the image."`
}

func (c *imageDelete) Run(ctx context.Context) error {
	_, err := c.do(ctx, http.MethodDelete, "/images/"+url.PathEscape(c.SHA256), nil)
	return err
}

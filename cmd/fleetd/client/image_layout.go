package client

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"mime/multipart"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
)

// flasherArgsFile is the file in which ESP-IDF's build lists the flash offset
// of each file.
const flasherArgsFile = "flasher_args.json"

// buildFiles returns the files of a build, by their paths in its folder,
// without its application. If no application was named, it also sets that.
func (c *imagePush) buildFiles() ([]string, error) {
	if c.Layout == "" {
		if c.File == "" {
			return nil, errors.New("name the file: fleetd image push build/NAME.bin, or --layout build/")
		}
		return nil, nil
	}
	text, err := readPart(filepath.Join(c.Layout, flasherArgsFile))
	if err != nil {
		return nil, fmt.Errorf("--layout: %w; name the folder of the build", err)
	}
	var args struct {
		Files map[string]string `json:"flash_files"`
		App   struct{ File string }
	}
	if err := json.Unmarshal(text, &args); err != nil || len(args.Files) == 0 {
		return nil, fmt.Errorf("--layout: %s does not name the files to flash; build again", filepath.Join(c.Layout,
			flasherArgsFile))
	}
	if c.File == "" {
		if args.App.File == "" {
			return nil, errors.New("--layout: the build names no app; also give its file")
		}
		if !filepath.IsLocal(filepath.FromSlash(args.App.File)) {
			return nil, fmt.Errorf("--layout: %s names %q, which is outside the build's folder", flasherArgsFile,
				args.App.File)
		}
		c.File = filepath.Join(c.Layout, filepath.FromSlash(args.App.File))
	}
	files := slices.DeleteFunc(slices.Sorted(maps.Values(args.Files)), func(f string) bool { return f == args.App.File })
	return append(files, flasherArgsFile), nil
}

// pushLayout uploads the files that belong to the image just uploaded. All of
// them fit in memory: they are a bootloader, a table and small data.
func (c *imagePush) pushLayout(ctx context.Context, image json.RawMessage, files []string) error {
	var pushed Image
	if err := json.Unmarshal(image, &pushed); err != nil {
		return err
	}
	var body bytes.Buffer
	form := multipart.NewWriter(&body)
	for _, name := range files {
		if err := addFile(form, c.Layout, name); err != nil {
			return err
		}
	}
	if err := form.Close(); err != nil {
		return err
	}
	req, err := c.request(ctx, http.MethodPut, "/images/"+url.PathEscape(pushed.SHA256)+"/layout", nil)
	if err != nil {
		return err
	}
	req.Body, req.ContentLength = io.NopCloser(&body), int64(body.Len())
	req.Header.Set("Content-Type", form.FormDataContentType())
	if _, err := c.send(&http.Client{}, req); err != nil {
		return fmt.Errorf("the image %.12s is stored, but not the other parts that a blank board needs: %w", pushed.SHA256, err)
	}
	return nil
}

func addFile(form *multipart.Writer, dir, name string) error {
	if !filepath.IsLocal(filepath.FromSlash(name)) {
		return fmt.Errorf("--layout: %s names %q, which is outside the build's folder", flasherArgsFile, name)
	}
	data, err := readPart(filepath.Join(dir, filepath.FromSlash(name)))
	if err != nil {
		return fmt.Errorf("--layout: %w; build again", err)
	}
	part, err := form.CreateFormFile("file", name)
	if err == nil {
		_, err = part.Write(data)
	}
	return err
}

// readPart reads a file of the build. It refuses pipes, which could block, and
// devices, which may have no end.
func readPart(name string) ([]byte, error) {
	info, err := os.Stat(name)
	switch {
	case err != nil:
		return nil, err
	case !info.Mode().IsRegular():
		return nil, fmt.Errorf("%s is not a regular file", name)
	}
	return os.ReadFile(name)
}

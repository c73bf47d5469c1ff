// Package static serves the console's style sheets, scripts and icons, which are embedded in the
// program. A file's public name contains a hash of its content, so browsers can cache it for a year
// and never use an outdated one.
//
// All files are hashed and compressed when the program starts, and never change: there is no lock
// and no goroutine. The package depends on no page and no session.
package static

import (
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"io/fs"
	"mime"
	"net/http"
	"path"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/tdewolff/minify/v2"
	"github.com/tdewolff/minify/v2/css"
	"github.com/tdewolff/minify/v2/js"
)

//go:embed assets/css/*.css assets/*.css assets/*.js assets/*.svg
//go:embed vendor/*.js vendor/esp-web-tools/*.js vendor/fonts/*.woff2
var files embed.FS

// Prefix is the path that [Handler] must be mounted at.
const Prefix = "/static/"

type asset struct {
	contentType string
	plain, gzip []byte // gzip is nil for files that are already compressed
}

var (
	assets = make(map[string]asset)  // by public name: app.0123456789ab.css
	names  = make(map[string]string) // base name, or folder and name, to public name
)

func init() {
	for _, pattern := range []string{"assets/*.*", "vendor/*.*"} {
		for _, name := range glob(pattern) {
			b := read(name)
			if strings.HasPrefix(name, "assets/") {
				b = shortened(path.Ext(name), b)
			}
			add(path.Base(name), b)
		}
	}
	addFolder("vendor/esp-web-tools")
	addFolder("vendor/fonts")
	// The sheets are separate files in the source and one file for browsers. Their layers, not
	// their order, decide which rule wins.
	var sheet []byte
	for _, name := range glob("assets/css/*.css") {
		sheet = append(sheet, read(name)...)
	}
	// url(fonts/NAME) in a sheet becomes the public address of the file.
	sheet = fontAddress.ReplaceAllFunc(sheet, func(m []byte) []byte {
		return []byte("url(" + Path(string(m[len("url("):len(m)-1])) + ")")
	})
	add("app.css", shortened(".css", sheet))
}

// shortened returns a script or a sheet without comments and blanks, which would be a tenth of a
// page's weight. The files of others are already short.
func shortened(ext string, b []byte) []byte {
	shorten, ok := map[string]minify.MinifierFunc{".css": css.Minify, ".js": js.Minify}[ext]
	if !ok {
		return b
	}
	var short bytes.Buffer
	if err := shorten(minify.New(), &short, bytes.NewReader(b), nil); err != nil {
		panic("static: " + err.Error()) // the files are part of the program, and its tests load them all
	}
	return short.Bytes()
}

var fontAddress = regexp.MustCompile(`url\(fonts/[^)]+\)`)

func glob(pattern string) []string {
	found, err := fs.Glob(files, pattern)
	if err != nil {
		panic(err)
	}
	return found
}

func read(name string) []byte {
	b, err := fs.ReadFile(files, name)
	if err != nil {
		panic(err)
	}
	return b
}

func add(base string, b []byte) {
	ext := path.Ext(base)
	sum := sha256.Sum256(b)
	public := strings.TrimSuffix(base, ext) + "." + hex.EncodeToString(sum[:6]) + ext
	names[base] = public
	assets[public] = newAsset(ext, b)
}

// addFolder adds modules that import each other by their plain names. The names stay unchanged, and
// the name of the folder contains the hash of all its files.
func addFolder(folder string) {
	sum := sha256.New()
	files := glob(folder + "/*")
	for _, name := range files {
		sum.Write(read(name))
	}
	public := path.Base(folder) + "." + hex.EncodeToString(sum.Sum(nil)[:6])
	for _, name := range files {
		b, base := read(name), path.Base(name)
		names[path.Base(folder)+"/"+base] = public + "/" + base
		assets[public+"/"+base] = newAsset(path.Ext(base), b)
	}
}

// newAsset compresses a file unless it is already compressed, as fonts are. It sets the type of
// fonts, which some systems lack in their tables.
func newAsset(ext string, b []byte) asset {
	if ext == ".woff2" {
		return asset{contentType: "font/woff2", plain: b}
	}
	return asset{contentType: mime.TypeByExtension(ext), plain: b, gzip: compress(b)}
}

func compress(b []byte) []byte {
	var buf bytes.Buffer
	w, _ := gzip.NewWriterLevel(&buf, gzip.BestCompression) // the level is valid
	_, _ = w.Write(b)                                       // a bytes.Buffer never fails
	_ = w.Close()
	return buf.Bytes()
}

// Path returns the address of a file by its plain name, such as "app.css". It panics for an unknown
// name.
func Path(name string) string {
	public, ok := names[name]
	if !ok {
		panic("static: no file " + strconv.Quote(name))
	}
	return Prefix + public
}

// Handler serves the files under [Prefix].
func Handler() http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		a, ok := assets[strings.TrimPrefix(r.URL.Path, Prefix)]
		if !ok {
			http.NotFound(w, r)
			return
		}
		h := w.Header()
		h.Set("Content-Type", a.contentType)
		h.Set("Cache-Control", "public, max-age=31536000, immutable")
		h.Set("Vary", "Accept-Encoding")
		body := a.plain
		if a.gzip != nil && strings.Contains(r.Header.Get("Accept-Encoding"), "gzip") {
			h.Set("Content-Encoding", "gzip")
			body = a.gzip
		}
		http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(body))
	})
}

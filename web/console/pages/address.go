package pages

import (
	"net"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"unicode"

	"github.com/go-chi/chi/v5"
	"github.com/google/uuid"

	"fleetd/fleet"
	"fleetd/web/ui"
)

// ListURL returns the address of a list with its own parameters.
func ListURL(r *http.Request, path string, names ...string) ui.ListURL {
	asked, kept := r.URL.Query(), url.Values{}
	for _, name := range slices.Concat(names, []string{"limit", "cursor"}) {
		if v := asked.Get(name); v != "" {
			kept.Set(name, v)
		}
	}
	return ui.ListURL{Path: path, Values: kept}
}

// LimitOf returns the number of rows that the address asks for, within limits.
func LimitOf(l ui.ListURL) int {
	n, _ := strconv.Atoi(l.Get("limit"))
	return fleet.ClampLimit(n)
}

// DeviceID returns the device in the address. An invalid id is not found.
func DeviceID(r *http.Request) (fleet.DeviceID, error) {
	id, err := fleet.ParseDeviceID(chi.URLParam(r, "device"))
	if err != nil {
		return "", ErrNoPage
	}
	return id, nil
}

// ToolName returns the tool in the address. A name may contain a slash, escaped.
func ToolName(r *http.Request) string {
	name := chi.URLParam(r, "tool")
	if r.URL.RawPath != "" {
		if plain, err := url.PathUnescape(name); err == nil {
			return plain
		}
	}
	return name
}

// LocalPath returns the path if it is one of the console, else the first page: a link with a
// sign-in must not redirect to other sites.
func LocalPath(path string) string {
	u, err := url.Parse(path)
	switch {
	case err != nil, u.Scheme != "", u.Host != "", u.User != nil, u.Opaque != "",
		!strings.HasPrefix(path, "/"), strings.HasPrefix(path, "//"),
		strings.ContainsRune(path, '\\'), strings.ContainsFunc(path, unicode.IsControl),
		strings.HasPrefix(u.Path, "//"), strings.HasPrefix(u.Path, ui.PathSignIn), strings.HasPrefix(u.Path, ui.PathSignOut):
		return ui.PathHome
	}
	return path
}

// LocalOnly reports whether only the machine itself can reach the address.
func LocalOnly(address string) bool {
	u, err := url.Parse(address)
	if err != nil {
		return false
	}
	ip := net.ParseIP(u.Hostname())
	return u.Hostname() == "localhost" || ip != nil && ip.IsLoopback()
}

// SubjectID returns the id of the subject of a live page, which is in the address of its stream.
func SubjectID(r *http.Request) (uuid.UUID, error) {
	id, err := uuid.Parse(r.URL.Query().Get("id"))
	if err != nil {
		return id, ErrNoPage
	}
	return id, nil
}

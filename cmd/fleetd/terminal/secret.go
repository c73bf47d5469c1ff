package terminal

import (
	"fmt"
	"io"
	"os"
	"strings"
)

// maxSecretFile bounds the bytes that are read of a file with a secret.
const maxSecretFile = 64 << 10

// A Secret is a setting that may be given in a file, so the list of processes
// does not show it: --NAME or --NAME-file.
type Secret struct {
	Flag  string  // "--voice-secret"
	Value *string // from the flag, or filled in from the file
	File  string  // "" for none
}

// ReadSecrets fills in the secrets that are given in files. It calls warn for a
// file that everybody on the machine can read.
func ReadSecrets(warn func(flag, path string), secrets ...Secret) error {
	for _, s := range secrets {
		if s.File == "" {
			continue
		}
		text, open, err := readSecret(s.File)
		switch {
		case err != nil:
			return fmt.Errorf("%s-file: %w", s.Flag, err)
		case text == "":
			return fmt.Errorf("%s-file: %s is empty", s.Flag, s.File)
		case *s.Value != "" && *s.Value != text:
			return fmt.Errorf("%s and %s-file are both set: remove one of them", s.Flag, s.Flag)
		}
		if open {
			warn(s.Flag+"-file", s.File)
		}
		*s.Value = text
	}
	return nil
}

// readSecret returns the content of the file, without the final line break, and
// whether everybody can read the file.
func readSecret(path string) (text string, open bool, err error) {
	f, err := os.Open(path)
	if err != nil {
		return "", false, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return "", false, err
	}
	data, err := io.ReadAll(io.LimitReader(f, maxSecretFile+1))
	if err == nil && len(data) > maxSecretFile {
		err = fmt.Errorf("%s is larger than 64 KiB", path)
	}
	text = strings.TrimSuffix(strings.TrimSuffix(string(data), "\n"), "\r")
	return text, info.Mode().Perm()&0o004 != 0, err
}

// WarnOpenSecret warns on standard error that everybody can read a secret.
func WarnOpenSecret(flag, path string) {
	fmt.Fprintf(os.Stderr, "fleetd: %s: everybody on this machine can read %s; run chmod 600 %s\n", flag, path, path)
}

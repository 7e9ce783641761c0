/*
 * Functions of HDF5's C interface, each with the address that it returns to: a process may have several HDF5
 * libraries, and that says which one a call is meant for. A naked Rust function of the public name jumps here.
 *
 * Identifiers, pointers and flags are words: what a library takes less of, it does not look at.
 */
typedef long word;

#define CALLER __builtin_return_address(0)

#define ONE(name)                                                    \
	extern word forebay_hdf5_##name(const void *caller, word a); \
	word forebay_called_##name(word a)                           \
	{                                                            \
		return forebay_hdf5_##name(CALLER, a);               \
	}

#define TWO(name)                                                            \
	extern word forebay_hdf5_##name(const void *caller, word a, word b); \
	word forebay_called_##name(word a, word b)                           \
	{                                                                    \
		return forebay_hdf5_##name(CALLER, a, b);                    \
	}

#define THREE(name)                                                                  \
	extern word forebay_hdf5_##name(const void *caller, word a, word b, word c); \
	word forebay_called_##name(word a, word b, word c)                           \
	{                                                                            \
		return forebay_hdf5_##name(CALLER, a, b, c);                         \
	}

#define FIVE(name)                                                                                   \
	extern word forebay_hdf5_##name(const void *caller, word a, word b, word c, word d, word e); \
	word forebay_called_##name(word a, word b, word c, word d, word e)                           \
	{                                                                                            \
		return forebay_hdf5_##name(CALLER, a, b, c, d, e);                                   \
	}

#define SIX(name)                                                                                            \
	extern word forebay_hdf5_##name(const void *caller, word a, word b, word c, word d, word e, word f); \
	word forebay_called_##name(word a, word b, word c, word d, word e, word f)                           \
	{                                                                                                    \
		return forebay_hdf5_##name(CALLER, a, b, c, d, e, f);                                        \
	}

#define SEVEN(name)                                                                                                  \
	extern word forebay_hdf5_##name(const void *caller, word a, word b, word c, word d, word e, word f, word g); \
	word forebay_called_##name(word a, word b, word c, word d, word e, word f, word g)                           \
	{                                                                                                            \
		return forebay_hdf5_##name(CALLER, a, b, c, d, e, f, g);                                             \
	}

FIVE(H5Dcreate1)
SEVEN(H5Dcreate2)
TWO(H5Dopen1)
THREE(H5Dopen2)
THREE(H5Oopen)
SIX(H5Dread)
SIX(H5Dwrite)
ONE(H5Dflush)
TWO(H5Fflush)
ONE(H5Dclose)
ONE(H5Oclose)
ONE(H5Idec_ref)
ONE(H5Fclose)

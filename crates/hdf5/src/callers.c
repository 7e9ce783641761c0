/*
 * Functions of HDF5's C interface, each with the address that it returns to: a process may have several HDF5
 * libraries, and that says which one a call is meant for. A naked Rust function of the public name jumps here.
 *
 * Identifiers, pointers and flags are words: what a library takes less of, it does not look at.
 */
typedef long word;

#define CALLER __builtin_return_address(0)

#define ONE(name) \
	extern word forebay_hdf5_##name(const void *caller, word a); \
	word forebay_called_##name(word a) \
	{ \
		return forebay_hdf5_##name(CALLER, a); \
	}

#define TWO(name) \
	extern word forebay_hdf5_##name(const void *caller, word a, word b); \
	word forebay_called_##name(word a, word b) \
	{ \
		return forebay_hdf5_##name(CALLER, a, b); \
	}

#define THREE(name) \
	extern word forebay_hdf5_##name(const void *caller, word a, word b, word c); \
	word forebay_called_##name(word a, word b, word c) \
	{ \
		return forebay_hdf5_##name(CALLER, a, b, c); \
	}

#define FOUR(name) \
	extern word forebay_hdf5_##name(const void *caller, word a, word b, word c, word d); \
	word forebay_called_##name(word a, word b, word c, word d) \
	{ \
		return forebay_hdf5_##name(CALLER, a, b, c, d); \
	}

#define FIVE(name) \
	extern word forebay_hdf5_##name(const void *caller, word a, word b, word c, word d, word e); \
	word forebay_called_##name(word a, word b, word c, word d, word e) \
	{ \
		return forebay_hdf5_##name(CALLER, a, b, c, d, e); \
	}

#define SIX(name) \
	extern word forebay_hdf5_##name(const void *caller, word a, word b, word c, word d, word e, word f); \
	word forebay_called_##name(word a, word b, word c, word d, word e, word f) \
	{ \
		return forebay_hdf5_##name(CALLER, a, b, c, d, e, f); \
	}

#define SEVEN(name) \
	extern word forebay_hdf5_##name(const void *caller, word a, word b, word c, word d, word e, word f, word g); \
	word forebay_called_##name(word a, word b, word c, word d, word e, word f, word g) \
	{ \
		return forebay_hdf5_##name(CALLER, a, b, c, d, e, f, g); \
	}

#define EIGHT(name) \
	extern word forebay_hdf5_##name(const void *caller, word a, word b, word c, word d, word e, word f, word g, word h); \
	word forebay_called_##name(word a, word b, word c, word d, word e, word f, word g, word h) \
	{ \
		return forebay_hdf5_##name(CALLER, a, b, c, d, e, f, g, h); \
	}

#define TEN(name) \
	extern word forebay_hdf5_##name(const void *caller, word a, word b, word c, word d, word e, word f, word g, word h, word i, word j); \
	word forebay_called_##name(word a, word b, word c, word d, word e, word f, word g, word h, word i, word j) \
	{ \
		return forebay_hdf5_##name(CALLER, a, b, c, d, e, f, g, h, i, j); \
	}

#define ELEVEN(name) \
	extern word forebay_hdf5_##name(const void *caller, word a, word b, word c, word d, word e, word f, word g, word h, word i, word j, word k); \
	word forebay_called_##name(word a, word b, word c, word d, word e, word f, word g, word h, word i, word j, word k) \
	{ \
		return forebay_hdf5_##name(CALLER, a, b, c, d, e, f, g, h, i, j, k); \
	}

FIVE(H5Dcreate1)
SEVEN(H5Dcreate2)
TWO(H5Dopen1)
THREE(H5Dopen2)
THREE(H5Oopen)
SIX(H5Oopen_by_idx)
FIVE(H5Olink)
SIX(H5Lmove)
THREE(H5Ldelete)
THREE(H5Gmove)
FOUR(H5Gmove2)
TWO(H5Gunlink)
SIX(H5Dread)
FIVE(H5Dread_chunk)
SIX(H5Dwrite)
ONE(H5Dflush)
ONE(H5Drefresh)
ONE(H5Dclose)
ONE(H5Oclose)
ONE(H5Idec_ref)
FOUR(H5Fcreate)
THREE(H5Fopen)
TWO(H5Fflush)
ONE(H5Fstart_swmr_write)
ONE(H5Fclose)

/* Of HDF5 1.14 and later. */
FIVE(H5Dclose_async)
ELEVEN(H5Dcreate_async)
SEVEN(H5Dopen_async)
TEN(H5Dread_async)
FIVE(H5Dread_chunk1)
SIX(H5Dread_chunk2)
SEVEN(H5Dread_multi)
ELEVEN(H5Dread_multi_async)
TEN(H5Dwrite_async)
SEVEN(H5Dwrite_multi)
ELEVEN(H5Dwrite_multi_async)
FIVE(H5Fclose_async)
EIGHT(H5Fcreate_async)
SIX(H5Fflush_async)
SEVEN(H5Fopen_async)
FIVE(H5Oclose_async)
SEVEN(H5Oopen_async)
TEN(H5Oopen_by_idx_async)

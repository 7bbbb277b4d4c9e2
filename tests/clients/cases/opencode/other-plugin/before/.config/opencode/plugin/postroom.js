// mine
export const Mine = async () => ({})
